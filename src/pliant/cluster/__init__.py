"""One inference over several devices: how they talk, what each runs, who leads, what if one fails."""
