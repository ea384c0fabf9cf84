"""What several verbs share: declaring options, reading texts, printing."""
