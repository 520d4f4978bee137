#!/usr/bin/env python3
"""seccomp.py: a seccomp profile in which system calls are allowed that deepheap wants.

    seccomp.py [CALL...] <PROFILE >NEW

PROFILE is the engine's own: Podman's and CRI-O's is /usr/share/containers/seccomp.json, Docker's is
profiles/seccomp/default.json of its source. Without a CALL it allows `vmsplice`, which Podman's
refuses, and which deepheap cannot do without before Linux 6.8. Others: `userfaultfd` in place of
the device, `process_madvise` (pages leave RAM in batches), `io_uring_setup`, `io_uring_enter` and
`io_uring_register` (in place of the kernel's AIO).
"""

import json
import sys


def allowing(profile, calls):
    """The profile with these calls allowed: no rule refuses them any more, and one allows them."""
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in calls]
    rules = [rule for rule in profile["syscalls"] if rule["names"]]
    rules.append({"names": calls, "action": "SCMP_ACT_ALLOW", "args": []})
    return {**profile, "syscalls": rules}


if __name__ == "__main__":
    if sys.stdin.isatty():
        sys.exit(__doc__)
    json.dump(allowing(json.load(sys.stdin), sys.argv[1:] or ["vmsplice"]), sys.stdout, indent=1)
    print()
