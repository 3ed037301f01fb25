"""The built-in components, registered through the same hooks as any plugin's."""

from __future__ import annotations

from trinity_core import hookimpl

HERE = "trinity_core.builtins"


@hookimpl
def trinity_tasksets() -> dict[str, str]:
    return {
        "conversations": f"{HERE}.tasksets.conversations:Conversations",
        "guess": f"{HERE}.tasksets.guess:GuessTasks",
        "numbers": f"{HERE}.tasksets.numbers:Numbers",
    }


@hookimpl
def trinity_selectors() -> dict[str, str]:
    return {"shuffled": f"{HERE}.selectors.shuffled:Shuffled"}


@hookimpl
def trinity_workflows() -> dict[str, str]:
    return {
        "single_turn": f"{HERE}.workflows.single_turn:SingleTurn",
        "multi_turn": f"{HERE}.workflows.multi_turn:MultiTurn",
    }


@hookimpl
def trinity_environments() -> dict[str, str]:
    return {"guess": f"{HERE}.environments.guess:Guess"}


@hookimpl
def trinity_rewards() -> dict[str, str]:
    return {"exact": f"{HERE}.rewards.exact:Exact", "overlong": f"{HERE}.rewards.overlong:Overlong"}


@hookimpl
def trinity_operators() -> dict[str, str]:
    return {
        "ask_people": f"{HERE}.operators.ask_people:AskPeople",
        "best_worst": f"{HERE}.operators.best_worst:BestWorst",
        "dynamic_sampling": f"{HERE}.operators.dynamic_sampling:DynamicSampling",
    }


@hookimpl
def trinity_buffers() -> dict[str, str]:
    return {"memory": f"{HERE}.buffers.memory:MemoryBuffer", "sql": f"{HERE}.buffers.sql:SQLBuffer"}


@hookimpl
def trinity_sample_strategies() -> dict[str, str]:
    return {"fifo": f"{HERE}.strategies.fifo:Fifo"}


@hookimpl
def trinity_advantages() -> dict[str, str]:
    return {
        "grpo": f"{HERE}.advantages.grpo:GroupRelative",
        "rloo": f"{HERE}.advantages.rloo:LeaveOneOut",
        "reinforce": f"{HERE}.advantages.reinforce:Reinforce",
        "reinforce_pp": f"{HERE}.advantages.reinforce_pp:ReinforcePlusPlus",
        "opmd": f"{HERE}.advantages.opmd:MirrorDescent",
        "remax": f"{HERE}.advantages.remax:ReMax",
        "gae": f"{HERE}.advantages.gae:GeneralizedAdvantage",
        "asymre": f"{HERE}.advantages.asymre:AsymmetricReinforce",
        "rec": f"{HERE}.advantages.rec:REC",
        "maxrl": f"{HERE}.advantages.maxrl:MaxRL",
        "step_wise_grpo": f"{HERE}.advantages.step_wise_grpo:StepWiseGRPO",
        "gigpo": f"{HERE}.advantages.gigpo:GroupInGroup",
        "on_policy_distill": f"{HERE}.advantages.on_policy_distill:OnPolicyDistill",
        "jsd_sampled": f"{HERE}.advantages.jsd_sampled:SampledJSD",
        "clip_b": f"{HERE}.advantages.clip_b:ClipB",
        "clip_v": f"{HERE}.advantages.clip_v:ClipV",
        "win_rate": f"{HERE}.advantages.win_rate:WinRate",
        "raft": f"{HERE}.advantages.raft:RewardRanked",
    }


@hookimpl
def trinity_losses() -> dict[str, str]:
    return {
        "ppo": f"{HERE}.losses.ppo:PPOClip",
        "importance_sampling": f"{HERE}.losses.importance_sampling:ImportanceSampling",
        "sft": f"{HERE}.losses.sft:SFT",
        "reinforce": f"{HERE}.losses.reinforce:PolicyGradient",
        "sppo": f"{HERE}.losses.sppo:SPPO",
        "sft_is": f"{HERE}.losses.sft_is:SFTImportance",
        "sft_phi": f"{HERE}.losses.sft_phi:SFTPhi",
        "dpo": f"{HERE}.losses.dpo:DPO",
        "ipo": f"{HERE}.losses.ipo:IPO",
        "hinge": f"{HERE}.losses.hinge:Hinge",
        "mix": f"{HERE}.losses.mix:Mix",
        "chord": f"{HERE}.losses.chord:Chord",
        "clip_cov": f"{HERE}.losses.clip_cov:ClipCov",
        "kl_cov": f"{HERE}.losses.kl_cov:KLCov",
        "m2po": f"{HERE}.losses.m2po:M2PO",
        "jsd": f"{HERE}.losses.jsd:JSD",
        "gspo": f"{HERE}.losses.gspo:GSPO",
        "cispo": f"{HERE}.losses.cispo:CISPO",
        "opmd": f"{HERE}.losses.opmd:OPMD",
        "kimi_opmd": f"{HERE}.losses.kimi_opmd:KimiOPMD",
        "sapo": f"{HERE}.losses.sapo:SAPO",
        "topr": f"{HERE}.losses.topr:TOPR",
        "topr_token": f"{HERE}.losses.topr_token:TokenTOPR",
        "simplified_ppo": f"{HERE}.losses.simplified_ppo:SimplifiedPPO",
        "geo_mean": f"{HERE}.losses.geo_mean:GeoMean",
        "dppo": f"{HERE}.losses.dppo:DPPO",
        "rec": f"{HERE}.losses.rec:REC",
    }


@hookimpl
def trinity_corrections() -> dict[str, str]:
    return {
        "truncated_is": f"{HERE}.corrections.truncated_is:TruncatedIS",
        "truncated_is_sequence": f"{HERE}.corrections.truncated_is:TruncatedISSequence",
        "masked_is": f"{HERE}.corrections.masked_is:MaskedIS",
        "masked_is_sequence": f"{HERE}.corrections.masked_is:MaskedISSequence",
        "icepop": f"{HERE}.corrections.masked_is:IcePop",
        "off_policy_mask": f"{HERE}.corrections.off_policy_mask:OffPolicyMask",
    }


@hookimpl
def trinity_backends() -> dict[str, str]:
    return {"local": f"{HERE}.backends.local:Local", "fake": f"{HERE}.backends.fake:Fake"}


@hookimpl
def trinity_engines() -> dict[str, str]:
    return {"hf": f"{HERE}.engines.hf:HF", "fake": f"{HERE}.engines.fake:FakeEngine"}


@hookimpl
def trinity_runtimes() -> dict[str, str]:
    return {"inprocess": f"{HERE}.runtimes.inprocess:InProcess"}


@hookimpl
def trinity_trackers() -> dict[str, str]:
    return {
        "console": f"{HERE}.trackers.console:Console",
        "jsonl": f"{HERE}.trackers.jsonl:Jsonl",
        "tensorboard": f"{HERE}.trackers.tensorboard:TensorBoard",
        "wandb": f"{HERE}.trackers.wandb:Wandb",
        "alarms": f"{HERE}.trackers.alarms:Alarms",
    }


@hookimpl
def trinity_install_hint(kind: str, name: str) -> str | None:
    from trinity_core.builtins.homes import home

    return home(kind, name)
