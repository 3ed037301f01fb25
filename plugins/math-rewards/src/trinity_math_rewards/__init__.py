"""Mathematics for Trinity: rewards and tasksets."""
