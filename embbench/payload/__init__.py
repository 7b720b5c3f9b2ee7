"""What an answer must hold: bytes to vectors, checks of one answer, of a trial and of a target."""
