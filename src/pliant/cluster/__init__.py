"""One inference over several devices: messages, the share of each member, the primary, failures."""
