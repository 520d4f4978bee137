//! What `deepheap profile` refuses, each with a reason and without a trace of it.

mod command;

use command::{Folder, told};

#[test]
fn what_cannot_be_profiled_is_refused_with_a_reason() {
    let folder = Folder::new();
    let pid = std::process::id().to_string();
    for (arguments, reason) in [
        (&["profile", "4194999"][..], "there is no process 4194999"),
        (&["profile", &pid], "does not run under deepheap"),
        (&["profile", "--ram", "1G", &pid], "give no options of run"),
        (&["profile", "--allocations", &pid], "for a program to start"),
        (&["profile", "--seconds", "3", "true"], "leave it out"),
        (&["profile", "-o", "none/x.svg", "true"], "cannot be written"),
        (&["profile", "no-such-program"], "no-such-program"),
    ] {
        let (status, out, err) = told(&folder.output(arguments));
        assert_ne!(status, Some(0), "{arguments:?}: {out}");
        assert!(err.starts_with("deepheap: ") && err.contains(reason), "{arguments:?}: {err}");
    }
}

#[test]
fn a_program_without_faults_keeps_its_exit_status_and_is_told_to_have_none() {
    let folder = Folder::new();
    let (status, out, err) = told(&folder.output(["profile", "sh", "-c", "echo said; exit 7"]));
    assert_eq!((status, out.as_str()), (Some(7), "said\n"), "{err}");
    assert!(err.contains("it waited in no fault"), "{err}");
}
