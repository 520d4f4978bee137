"""notebook.py KERNEL N: what a notebook does: starts the kernel that is installed under that name,
fills an array of N MiB cell by cell, interrupts a cell that does not end, and adds up; prints the
sum.
"""

import sys
from queue import Empty

from jupyter_client.manager import start_new_kernel

#: Seconds that a cell may take.
LIMIT = 300


def messages(client, request):
    """What the cell of a request prints, piece by piece; or the name of its error."""
    while True:
        message = client.get_iopub_msg(timeout=LIMIT)
        content = message["content"]
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["msg_type"] == "stream":
            yield content["text"].strip()
        elif message["msg_type"] == "error":
            yield content["ename"]
        elif content.get("execution_state") == "idle":
            return


def printed(client, cell):
    """Runs a cell; all that it prints."""
    return " ".join(messages(client, client.execute(cell)))


def main():
    """Plays the notebook."""
    manager, client = start_new_kernel(kernel_name=sys.argv[1])
    try:
        printed(client, "import numpy; parts = []")
        for part in range(int(sys.argv[2]) // 32):
            printed(client, f"parts.append(numpy.arange({part}, {part} + (1 << 22)))")
        # Otherwise the kernel drops the cells that reach it while it handles the error.
        endless = messages(client, client.execute("print('on it', flush=True)\nwhile True: pass",
                                                  stop_on_error=False))
        print(next(endless))
        manager.interrupt_kernel()
        print(*endless)
        print(printed(client, "print(sum(int(part.sum()) for part in parts))"))
    except Empty:
        sys.exit("the kernel did not answer")
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


main()
