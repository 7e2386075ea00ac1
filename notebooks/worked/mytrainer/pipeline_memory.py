"""Predict the peak memory of a pipeline's rank."""


def peak_bytes(program, saved, boundary, forward_extra, backward_extra):
    """Return the bytes that the passes of a rank hold at the peak.

    Args:
        program: this rank's program, such as ["recv F0 from 0", "F0", "send F0 to 2", "recv B0 from 2", "B0", "send B0 to 0"];
            F2.1 is a pass of chunk 1.
        saved: for each chunk, the bytes that a forward pass saves for the backward pass of the same micro-batch, besides
            its input and its output.
        boundary: bytes of the hidden states between two stages, and also of their gradient.
        forward_extra: for each chunk, the bytes that a forward pass needs besides, while it runs.
        backward_extra: the same for a backward pass.
    """
    sent = {item.split()[1] for item in program if item.startswith("send")}
    received = {item.split()[1] for item in program if item.startswith("recv")}
    held = peak = 0
    for item in program:
        verb, *rest = item.split()
        if verb == "recv":
            held += boundary
        elif verb == "send":
            if rest[0].startswith("B"):  # a stage keeps its output for the backward pass
                held -= boundary
        else:
            chunk = int(verb.partition(".")[2] or 0)
            if verb in sent:
                held += boundary
            if verb.startswith("F"):
                held += saved[chunk]
                peak = max(peak, held + forward_extra[chunk])
            else:
                peak = max(peak, held + backward_extra[chunk])
                forward = "F" + verb[1:]
                held -= saved[chunk] + boundary * ((forward in received) + (forward in sent) + (verb in received))
        peak = max(peak, held)
    return peak
