"""Exchange tiles between the two physical cores of a logical one."""

from trnrt.nki import nisa, nl


def exchange(dst: nl.NkiTensor, src: nl.NkiTensor) -> None:
    """dst of core c = src of core 1 - c; both cores call it, as often and in the same order.

    dst, src: SBUF tiles, alike in shape and dtype
    limits: two cores, kernel[2], from trn2 on

    The self-test has no case of it: its processes run kernels on one core.
    """
    assert nl.num_programs(0) == 2, "exchange: a kernel on two cores, kernel[2]"
    other = 1 - nl.program_id(0)
    nisa.sendrecv(src=src, dst=dst, send_to_rank=other, recv_from_rank=other, pipe_id=0)
