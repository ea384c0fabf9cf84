"""One inference over several devices: how they talk, what each runs, who leads, and what happens when one fails."""
