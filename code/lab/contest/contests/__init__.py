"""One file per contest: it declares CONTEST, a lab.contest.declaration.Contest of its own name."""
