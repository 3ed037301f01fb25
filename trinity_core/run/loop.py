"""The two loops of a run, each readable top to bottom.

explore:  gate → select → play → score → operators → put
train:    lease → measure → credit → update → commit → log → checkpoint → evaluate → publish
          where explorers wait for the version and for nothing else: … → update → log → publish → commit

They meet only in the ledger and in the gate. ``both`` runs them together; ``explore`` and ``train`` run one each.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import Literal

from trinity_core.errors import Fenced, LeaseLost, LedgerError, RunError
from trinity_core.protocols import Opening
from trinity_core.rollout.scheduler import Played
from trinity_core.run.context import Run
from trinity_core.run.credit import lr_scale, prepare, staleness, updates
from trinity_core.run.deliver import Vanished, load
from trinity_core.run.filling import Filling
from trinity_core.run.leasing import LOOK_S, heartbeat, lease_step, settled
from trinity_core.run.metrics import check_trainable, critic_metrics, step_metrics
from trinity_core.run.source import Source
from trinity_core.run.state import Training
from trinity_core.types import Group

# --- explore ----------------------------------------------------------------------------------------------------------


async def explore(run: Run, source: Source) -> None:
    """Play draws while the gate has places; load the next version when it has none."""
    config, gate, ledger, engine = run.config, run.gate, run.ledger, run.engine
    assert engine is not None
    lockstep = config.explorer.order == "lockstep"
    at_once = max(1, config.explorer.max_concurrent // config.algorithm.group_size)
    filling = Filling(run)
    playing: set[asyncio.Task[None]] = set()
    full = False
    """Whether all places are taken, as far as is known: trying to enter is a write, so then it is looked first."""
    try:
        while not source.over:
            if engine.version < 0 or (not gate.ordered and source.newest() > engine.version):
                await fetch(run, source, gate.version_for(ledger.taken()) if gate.ordered else 0)
                if engine.version < 0:
                    continue
            room = 10**9 if lockstep else at_once - len(playing)
            if run.reserved or (lockstep and playing):
                room = 0
            openings = filling.enter(room) if room > 0 and not full else []
            if lockstep and openings:
                playing.add(asyncio.create_task(play(run, openings)))
            else:
                playing |= {asyncio.create_task(play(run, [opening])) for opening in openings}
            if playing:
                done, playing = await asyncio.wait(playing, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # a failure of play ends the loop
                full = not playing and not gate.alone
            elif gate.alone:
                break  # every place is taken and every draw has ended
            elif not openings:
                run.phase = "waiting for weights"
                source.check()
                gate = run.gate = dataclasses.replace(gate, last_step=source.last_step() or gate.last_step)
                wanted = gate.version_for(ledger.taken())
                if wanted > engine.version:
                    await fetch(run, source, wanted)
                elif not full:
                    await run.bell.wait(0.1)
                full = wanted > engine.version
    finally:
        for task in playing:
            task.cancel()
        await asyncio.gather(*playing, return_exceptions=True)


async def fetch(run: Run, source: Source, wanted: int) -> None:
    """Load version ``wanted`` (ordered: exactly that one) if it comes soon; the caller looks again what it wants."""
    assert run.engine is not None
    try:
        if await load(run, await source.wait(wanted, exact=run.gate.ordered)) and run.config.join is not None:
            run.step = run.engine.version  # what the trainer has reached, as far as this explorer knows
    except Vanished:
        # whatever the engine holds now, nothing is sampled from it
        run.receipt, run.engine.version = None, -1


async def play(run: Run, openings: Sequence[Opening]) -> None:
    """Play these draws, then store them in draw order. Draws that do not end give their places back."""
    run.clock.start()
    run.phase = "playing"
    picked = run.selector.pick([opening.draw for opening in openings], run.sizes, run.weights)
    if len(picked) != len(openings):
        raise RunError(
            f"selector {type(run.selector).__name__}: picked {len(picked)} tasks for {len(openings)} draws. It must pick one each"
        )
    places = {opening.draw: opening.place for opening in openings}
    draws = [(opening.draw, slot, row) for opening, (slot, row) in zip(openings, picked)]
    try:
        playing = run.scheduler.play(draws, extra_roles=run.extra_roles, on_wave=lambda _: run.sampling.ring())
        async with contextlib.aclosing(playing) as played:
            async for some in played:
                await store(run, [(one, places[one.group.draw]) for one in some])
                for one in some:
                    del places[one.group.draw]
    except BaseException as error:
        try:
            with contextlib.suppress(Fenced):  # the new lineage has freed them
                for place in places.values():
                    run.ledger.leave(place)
        except LedgerError as other:
            error.add_note(f"besides, its places could not be given back: {other}")
        raise


async def store(run: Run, played: Sequence[tuple[Played, str]]) -> None:
    """Let selector and operators see groups that were played, each with its place, then put what they keep: its place becomes
    the group's. What ended together is put together, unless operators may keep the next group waiting."""
    kept: list[tuple[Group, str | None]] = []
    try:
        for one, place in played:
            groups, why = await keep(run, one)
            if why is not None:
                put(run, kept)  # the history tells what became of each draw in their order
                kept = []
                run.ledger.drop(one.group.id, *why, place=place)
                continue
            # what an operator makes of a group belongs to its draw, under ids of the kernel's
            first, *more = (
                dataclasses.replace(group, id=f"{one.group.id}+{n}" if n else one.group.id, draw=one.group.draw)
                for n, group in enumerate(groups)
            )
            kept.append((first, place))
            if run.operators:
                if put(run, kept):  # of a draw that came too late nothing is stored
                    put(run, [(group, None) for group in more])
                kept = []
        put(run, kept)
    finally:
        run.bell.ring()
        run.sampling.ring()


async def keep(run: Run, played: Played) -> tuple[list[Group], tuple[Literal["voided", "filtered"], str] | None]:
    """What selector and operators leave of a group; where that is nothing, the event and the reason."""
    if played.reason is not None:
        run.void_reasons[played.reason] += 1
        return [], ("voided", played.reason)
    run.selector.observe(played.group)
    groups, dropped_by = await run.operate(played.group)
    if not groups:
        run.void_reasons[f"filtered by {dropped_by}"] += 1
        run.filtered[dropped_by] += 1
        return [], ("filtered", dropped_by)
    if len(groups) > 1 and run.gate.ordered and not run.has_surplus:
        run.has_surplus = True
        run.tell(
            "warned",
            f"an operator made {len(groups)} groups of one draw: draws fill more than their step, and the rest trains later "
            "than sync allows. correction=[truncated_is] corrects for it; sync.mode=async bounds it; trinity audit will list it",
        )
    return groups, None


def put(run: Run, groups: Sequence[tuple[Group, str | None]]) -> bool:
    """Store groups; whether all are. One that came too late is told and left out."""
    answers = run.ledger.put_all(groups) if groups else []
    for (group, _), stored in zip(groups, answers):
        run.stored += stored is True
        if isinstance(stored, LeaseLost):
            run.tell("warned", f"group {group.id} came too late and was not stored: {stored}")
    for (group, _), stored in zip(groups, answers):
        if stored is False:
            raise RunError(
                f"group {group.id} of draw {group.draw} is stored already: a draw was played twice, or an operator keeps the "
                "groups it has seen"
            )
    return all(stored is True for stored in answers)


# --- train ------------------------------------------------------------------------------------------------------------


async def train(run: Run, training: Training) -> None:
    """Consume one lease a step; each step makes one version."""
    config, gate, ledger, backend = run.config, run.gate, run.ledger, run.backend
    assert backend is not None
    total = config.steps * training.algorithm.updates_per_step
    eager = run.mode == "both" and config.explorer.order == "lockstep" and not gate.overlaps
    ledger.say("steps", str(config.steps))
    while run.step < config.steps:
        step = run.step + 1
        began = time.perf_counter()
        await training.written(wait=False)

        run.phase_of_trainer = ""  # it waits for groups
        lease = await lease_step(run, step)
        leased = time.perf_counter()
        if run.mode == "train":
            run.clock.start()  # its draws are played elsewhere: its time begins with its first groups
        async with heartbeat(run, lease):
            groups = ledger.read(lease.group_ids)
            training.batch_ids = list(lease.group_ids)

            run.phase_of_trainer = "training"
            prepared = await run.compute(
                prepare,
                training.algorithm,
                backend,
                groups,
                seed=run.seed,
                step=step,
                teacher=training.teacher,
                kl_coef=training.kl_coef,
            )
            check_trainable(run, step, groups, prepared)
            objective = training.algorithm.objective(step)
            critic, policy_too = training.algorithm.critic(step)
            results, values = [], []
            for number, update in enumerate(updates(prepared, config)):
                scale = lr_scale(config.optim, run.step * training.algorithm.updates_per_step + number, total)
                if critic is not None:
                    values.append(await run.compute(backend.update, update, "critic", critic, lr_scale=scale))
                if policy_too:
                    results.append(await run.compute(backend.update, update, "policy", objective, lr_scale=scale))
            last = step == config.steps
            checkpoint = last or (config.checkpoint.every > 0 and step % config.checkpoint.every == 0)
            evaluate = training.evaluator.due(step, last=config.steps)
            deliver = gate.delivers(step) and not last
            # explorers wait for this version and for nothing else: the ledger is written while they sample
            hurry = eager and deliver and not (checkpoint or evaluate)
            if not hurry:
                ledger.commit(lease, step)
            run.step, run.phase_of_trainer = step, ""

            metrics = step_metrics(
                run, prepared.metrics | staleness(groups, step) | critic_metrics(values), results, groups
            )
            training.adapt(prepared.batch)
            training.chain(metrics)
            ended = time.perf_counter()
            metrics |= {"time/step_s": ended - began, "time/wait_s": leased - began, "time/train_s": ended - leased}
            run.last_reward = metrics.get("reward/mean", run.last_reward)
            run.tell("step", step, metrics)

            if last:
                run.clock.pause()
            checkpoint = checkpoint or run.alarm_raised
            if hurry:
                if not checkpoint:
                    version, deliver = await training.publish(step), False
                    run.sampling.forget()
                    training.announce(version)
                    await run.sampling.wait(LOOK_S)
                ledger.commit(lease, step)

        weights = None
        if gate.ordered and (checkpoint or evaluate):
            run.phase_of_trainer = "settling"
            await settled(run, step)
        if checkpoint:
            run.phase_of_trainer = "saving"
            await training.save(step)
            if run.alarm_raised:
                await training.written()
            run.heed_alarm()
        run.phase_of_trainer = ""
        if evaluate or deliver:
            weights = await training.publish(step)
        if evaluate and weights is not None:
            await training.evaluate(step, weights)
        if weights is not None and deliver:
            training.announce(weights)
        run.reserved = last
    run.phase_of_trainer = "saving"
    await training.written()
    run.phase_of_trainer = ""


async def both(run: Run, training: Training) -> None:
    """Explorer and trainer together; when one fails the other is stopped, when the trainer is done so is the explorer."""
    exploring = asyncio.create_task(explore(run, training.shelf))
    teaching = asyncio.create_task(train(run, training))
    try:
        done, _ = await asyncio.wait({exploring, teaching}, return_when=asyncio.FIRST_COMPLETED)
        if exploring in done:
            exploring.result()
            raise RunError(f"step {run.step + 1}: the explorer ended before the trainer had its groups")
        teaching.result()
    finally:
        training.shelf.finish()
        for task in (exploring, teaching):
            task.cancel()
        await asyncio.gather(exploring, teaching, return_exceptions=True)
