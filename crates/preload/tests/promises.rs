//! What the preload library promises to programs, each promise as a C program that runs without us,
//! preloaded within its budget, and preloaded with everything it touches leaving RAM.

mod preloaded;

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output};

use preloaded::{Scratch, Setting, compile, compile_as, holds, holds_in, library, run};

#[test]
fn the_malloc_family_keeps_its_contracts() {
    holds("malloc_family.c", "the family holds");
}

#[test]
fn new_and_delete_work_in_all_forms() {
    holds("new_delete.cpp", "new and delete hold");
}

#[test]
fn strings_from_libc_are_the_programs_own() {
    holds("own_strings.c", "strings hold");
}

#[test]
fn what_libc_needs_for_large_things_leaves_ram_too() {
    holds("libc_buffers.c", "libc's buffers hold");
}

#[test]
fn system_calls_on_evicted_buffers_move_every_byte() {
    holds("evicted_buffers.c", "every byte moved");
}

#[test]
fn calls_by_number_do_what_their_functions_do() {
    holds("by_number.c", "numbers hold");
}

#[test]
fn calls_that_few_programs_make_find_their_memory() {
    holds("rare_calls.c", "rare calls hold");
}

#[test]
fn a_process_reaches_its_own_memory_through_the_kernel() {
    holds("own_memory.c", "own memory holds");
}

#[test]
fn a_call_stops_short_only_where_the_kernel_stops_it() {
    holds("short_counts.c", "counts hold");
}

#[test]
fn calls_that_wait_leave_the_program_its_ram() {
    holds("blocked_writers.c", "blocked writers hold");
}

#[test]
fn what_a_call_had_pinned_is_memory_as_any_other_afterwards() {
    holds("pinned_memory.c", "pinned memory holds");
}

#[test]
fn a_stack_that_the_program_gave_to_a_thread_is_memory_as_any_other_afterwards() {
    holds("own_stacks.c", "own stacks hold");
}

#[test]
fn a_program_whose_threads_stacks_overrun_the_budget_goes_on_and_is_told_once() {
    let scratch = Scratch::new("live-stacks");
    let program = compile("own_stacks.c", &scratch);
    for setting in Setting::ALL {
        let output = run(Command::new(&program).arg("live"), setting, &scratch);
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.success(), "{setting:?}: {}: {said}", output.status);
        let times = said.matches("the RAM budget is overrun").count();
        assert_eq!(times, usize::from(setting == Setting::Managing), "{setting:?}: {said}");
    }
}

#[test]
fn system_calls_on_pages_of_a_map_find_them() {
    for setting in Setting::PRELOADED {
        let scratch = Scratch::new(&format!("map-calls-{setting:?}"));
        let program = compile("map_calls.c", &scratch);
        holds_in(&program, setting, &scratch, "map calls hold");
    }
}

#[test]
fn system_calls_on_a_private_map_find_the_file_and_what_is_given_up_is_zeros() {
    for setting in Setting::PRELOADED {
        let scratch = Scratch::new(&format!("private-calls-{setting:?}"));
        let program = compile("private_calls.c", &scratch);
        holds_in(&program, setting, &scratch, "private calls hold");
    }
}

#[test]
fn calls_under_way_when_management_begins_lose_nothing() {
    holds("under_way.c", "under way holds");
}

#[test]
fn threads_wait_on_evicted_objects() {
    holds("threads.c", "threads hold");
}

#[test]
fn cancelled_threads_leave_nothing_behind() {
    holds("cancel.c", "cancellation holds");
}

#[test]
fn what_the_kernel_was_told_of_early_stays_where_it_is() {
    holds("early.c", "early holds");
}

#[test]
fn children_see_every_byte_and_get_every_argument() {
    holds("processes.c", "children hold");
}

#[test]
fn signals_mean_what_they_meant() {
    holds("signals.c", "signals hold");
}

#[test]
fn handlers_run_on_coroutines_as_they_would() {
    holds("coroutines.c", "coroutines hold");
}

#[test]
fn signals_in_the_middle_of_faults_come_once_and_in_order() {
    holds("signalled_faults.c", "signalled faults hold");
}

#[test]
fn children_that_share_the_memory_run_and_end_as_they_would() {
    holds("shared_children.c", "shared children hold");
}

#[test]
fn a_handler_that_interrupts_the_allocator_may_fork() {
    const BOUND: [&str; 4] = ["timeout", "--signal=KILL", "600", "./program"];
    let scratch = Scratch::new("forking-handlers");
    compile("forking_handlers.c", &scratch);
    for setting in [Setting::Bare, Setting::Plain, Setting::Managing] {
        let output = run(Command::new(BOUND[0]).args(&BOUND[1..]), setting, &scratch);
        assert!(output.status.success(), "{setting:?}: {output:?}");
        assert_eq!(output.stdout, b"handlers fork\n", "{setting:?}");
    }
}

#[test]
fn a_program_may_begin_with_every_signal_blocked() {
    let scratch = Scratch::new("blocked");
    let program = compile("blocked.c", &scratch);
    for setting in Setting::ALL {
        let mut command = Command::new(&program);
        let block = || {
            // SAFETY: a set on this stack, in the child, which has one thread.
            unsafe {
                let mut all = core::mem::zeroed();
                libc::sigfillset(&mut all);
                libc::sigprocmask(libc::SIG_SETMASK, &all, core::ptr::null_mut());
            }
            Ok(())
        };
        // SAFETY: it makes two calls that are safe between fork and exec.
        unsafe { command.pre_exec(block) };
        let output = run(&mut command, setting, &scratch);
        assert!(output.status.success(), "{setting:?}: {output:?}");
        assert_eq!(output.stdout, b"blocked holds\n", "{setting:?}");
    }
}

#[test]
fn objects_are_memory_like_any_other() {
    for (source, line) in [
        ("malloc_family.c", "the family holds"),
        ("new_delete.cpp", "new and delete hold"),
        ("own_strings.c", "strings hold"),
        ("evicted_buffers.c", "every byte moved"),
        ("short_counts.c", "counts hold"),
        ("under_way.c", "under way holds"),
        ("threads.c", "threads hold"),
        ("early.c", "early holds"),
        ("processes.c", "children hold"),
        ("signals.c", "signals hold"),
        ("many_nodes.c", "nodes hold"),
    ] {
        let scratch = Scratch::new(&format!("placed-{}", source.replace('.', "-")));
        holds_in(&compile(source, &scratch), Setting::Objects, &scratch, line);
    }
}

#[test]
fn a_programs_own_new_is_called_by_the_program_only() {
    let scratch = Scratch::new("own-new");
    let program = compile("own_new.cpp", &scratch);
    for setting in [Setting::Bare, Setting::Managing] {
        holds_in(&program, setting, &scratch, "3 of its own");
    }
}

#[test]
fn a_program_with_its_own_malloc_gets_from_libc_what_its_own_free_can_take() {
    let scratch = Scratch::new("own-malloc");
    let options = ["-fno-builtin"].map(OsStr::new);
    let program = compile_as("program", "own_malloc.c", &options, &scratch);
    for setting in Setting::ALL {
        holds_in(&program, setting, &scratch, "own malloc holds");
    }
}

#[test]
fn where_no_address_space_is_left_malloc_says_so() {
    holds("address_space.c", "address space holds");
}

#[test]
fn libraries_may_allocate_before_us() {
    let scratch = Scratch::new("early-library");
    let source = "early_library.c";
    let options = ["-shared", "-fPIC", "-DLIBRARY"].map(OsStr::new);
    let early = compile_as("libearly.so", source, &options, &scratch);
    let program = compile_as("program", source, &[early.as_os_str()], &scratch);
    for setting in Setting::ALL {
        holds_in(&program, setting, &scratch, "early library holds");
    }
}

#[test]
fn libraries_opened_by_themselves_share_the_programs_heap() {
    let scratch = Scratch::new("deep-library");
    let source = "deep_library.c";
    let folder = scratch.path().join("beside");
    std::fs::create_dir(&folder).expect("a folder");
    let options = ["-shared", "-fPIC", "-DLIBRARY"].map(OsStr::new);
    compile_as("beside/libdeep.so", source, &options, &scratch);
    // Found by the run path of who calls dlopen.
    let options = ["-Wl,-rpath,$ORIGIN/beside"].map(OsStr::new);
    let program = compile_as("program", source, &options, &scratch);
    for setting in Setting::ALL {
        holds_in(&program, setting, &scratch, "deep library holds");
    }
}

#[test]
fn a_program_may_give_up_its_privileges() {
    let scratch = Scratch::new("privileges");
    let program = compile("privileges.c", &scratch);
    for setting in Setting::ALL {
        holds_in(&program, setting, &scratch, "given up");
    }
    let said = run(&mut Command::new(&program), Setting::Managing, &scratch).stderr;
    assert!(said.is_empty(), "{}", String::from_utf8_lossy(&said));
}

#[test]
fn a_program_that_has_given_up_its_rights_can_outgrow_ram() {
    for (setting, argument) in
        [(Setting::Plain, None), (Setting::Managing, None), (Setting::Managing, Some("fork"))]
    {
        let scratch = Scratch::new("rights");
        let program = compile("rights.c", &scratch);
        set_mode(scratch.path(), 0o700);
        let output = run(Command::new(&program).args(argument), setting, &scratch);
        set_mode(scratch.path(), 0o700);
        says_that_rights_hold(&output);
    }
}

fn set_mode(folder: &Path, mode: u32) {
    std::fs::set_permissions(folder, Permissions::from_mode(mode)).expect("a folder of ours");
}

#[track_caller]
fn says_that_rights_hold(output: &Output) {
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    assert_eq!(output.stdout, b"rights hold\n");
}

#[test]
fn a_program_that_filters_system_calls_needs_those_that_the_page_names() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/troubleshooting.md");
    let page = std::fs::read_to_string(page).expect("a page");
    let (_, section) = page.split_once("## A program with a filter").expect("a section");
    let lists: Vec<&str> = section.split("```").skip(1).step_by(2).take(2).collect();
    let scratch = Scratch::new("filter");
    for (lists, own, argument) in
        [(&lists[..1], "exit_group", None), (&lists, "exit_group wait4", Some("fork"))]
    {
        // Its own calls are to end, and to wait.
        let names =
            lists.iter().flat_map(|list| list.trim_start_matches("text").split_whitespace());
        let allowed: String =
            names.chain(own.split(' ')).map(|name| format!("ALLOW({name}) ")).collect();
        let allowed = format!("-DALLOWED={allowed}");
        let program = compile_as("program", "rights.c", &[OsStr::new(&allowed)], &scratch);
        for setting in [Setting::Plain, Setting::Managing] {
            let output = run(Command::new(&program).args(argument), setting, &scratch);
            says_that_rights_hold(&output);
        }
    }
}

#[test]
fn what_programs_map_themselves_is_what_they_asked_for() {
    holds("maps.c", "mappings hold");
}

#[test]
fn what_is_given_up_reads_as_zeros_and_is_not_read_in() {
    holds("give_up.c", "what is given up is zero");
}

#[test]
fn advice_is_followed_or_refused_and_no_core_dump_holds_what_it_must_not() {
    holds("advice.c", "advice holds");
}

#[test]
fn what_cannot_work_is_refused() {
    let scratch = Scratch::new("refusals");
    let program = compile("refusals.c", &scratch);
    for setting in Setting::PRELOADED {
        holds_in(&program, setting, &scratch, "refusals hold");
        let said = run(&mut Command::new(&program), setting, &scratch).stderr;
        let said = String::from_utf8(said).expect("text");
        assert_eq!(said.matches("io_uring_setup answer ENOSYS").count(), 1, "{said}");
    }
}

#[test]
fn memory_beside_the_budget_is_told_even_if_it_is_gone_at_exit() {
    let scratch = Scratch::new("beside");
    let program = compile("beside.c", &scratch);
    let said = |arguments: [&str; 3]| {
        let mut command = Command::new(&program);
        // As `deepheap run` sets it: all of the program's memory is meant.
        let command = command.args(arguments).env("DEEPHEAP_FIRST", "0");
        let output = run(command, Setting::Managing, &scratch);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    assert_eq!(said(["1", "8", "allocate"]), "");
    assert_eq!(said(["1", "8", "never"]), "");
    let words =
        "MiB of this program's memory were not managed, more than its RAM budget of 16.0 MiB";
    for arguments in [
        ["1", "80", "allocate"],
        ["1", "80", "never"],
        ["80", "1", "allocate"],
        ["80", "1", "never"],
        ["1", "80", "keep"],
    ] {
        let text = said(arguments);
        assert!(text.contains(words) && text.lines().count() == 1, "{arguments:?}: {text}");
    }
}

#[test]
fn a_process_ends_as_it_would() {
    let scratch = Scratch::new("ends");
    let program = compile("ends.c", &scratch);
    for way in ["r", "e", "_", "a", "t", "p", "c", "n"] {
        let ends: Vec<_> = Setting::ALL
            .into_iter()
            .map(|setting| {
                let output = run(Command::new(&program).arg(way), setting, &scratch);
                (output.status.code(), output.status.signal(), output.stdout, output.stderr)
            })
            .collect();
        assert_eq!(ends[0], ends[1], "{way}");
        assert_eq!(ends[0], ends[2], "{way}");
    }
}

#[test]
fn children_run_without_us_if_the_settings_say_so() {
    let scratch = Scratch::new("no-children");
    let preload = format!("libm.so.6:{}", library().display());
    for (conf, expected) in [
        ("ram:1G,store:.,children:no", "libm.so.6\n".to_owned()),
        ("ram:1G,store:.", format!("{preload}\n")),
    ] {
        let output = Command::new("/bin/sh")
            .args(["-c", "exec env printenv LD_PRELOAD"])
            .current_dir(scratch.path())
            .env("LD_PRELOAD", &preload)
            .env("DEEPHEAP_CONF", conf)
            .output()
            .expect("a shell");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{conf}");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn programs_with_address_sanitizer_run_without_us() {
    let scratch = Scratch::new("sanitized");
    let program = compile_as(
        "program",
        "sanitized.c",
        &["-fsanitize=address", "-Wno-use-after-free"].map(OsStr::new),
        &scratch,
    );
    for setting in Setting::ALL {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "\"$0\" one 'two words'; \"$0\"; exec \"$0\" wrong"]).arg(&program);
        let output = run(&mut shell, setting, &scratch);
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(stdout, "one, two words, sanitized\nsanitized\n", "{setting:?}: {stderr}");
        assert!(stderr.contains("heap-use-after-free"), "{setting:?}: {stderr}");
        assert!(!output.status.success());
    }
}

#[test]
fn what_follows_a_limit_on_address_space_runs_without_us() {
    let scratch = Scratch::new("address-space");
    let script = "ulimit -v 8000000; ls -d . && echo one | sort && ls -d /";
    for setting in Setting::ALL {
        let output = run(Command::new("/bin/sh").args(["-c", script]), setting, &scratch);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{setting:?}: {stderr}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), ".\none\n/\n", "{setting:?}");
        let lines = if setting == Setting::Bare { 0 } else { 3 };
        let said = "ulimit -v leaves no address space for the heap";
        assert_eq!(stderr.lines().filter(|line| line.contains(said)).count(), lines, "{stderr}");
        assert_eq!(stderr.lines().count(), lines, "{stderr}");
    }
}

#[test]
fn a_program_that_closes_everything_keeps_its_memory() {
    holds("descriptors.c", "memory outlives descriptors");
}
