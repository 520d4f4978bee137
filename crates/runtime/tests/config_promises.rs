//! What a configuration promises: it reads back, and it says what is wrong with it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use deepheap::Overcommit;
use deepheap::internal::config::{
    Compress, Config, ConfigError, KEYS, STORE_SIZE_DEFAULT, SecondTier, Share, StallLimit,
};
use deepheap::internal::machine::Machine;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;
const MACHINE: Machine = Machine { memory_bytes: 8 * GIB, cgroup_limit_bytes: None };

fn parse(conf: &str) -> Result<Config, ConfigError> {
    Config::parse_on(MACHINE, conf)
}

fn refusal(conf: &str) -> String {
    parse(conf).expect_err(conf).to_string()
}

/// Says what the environment means, in a process of the next test's.
const ROLE: &str = "DEEPHEAP_TEST_ROLE";

#[test]
fn a_program_with_more_rights_than_who_starts_it_believes_none_of_their_settings() {
    const NAME: &str =
        "a_program_with_more_rights_than_who_starts_it_believes_none_of_their_settings";
    // SAFETY: no memory arguments.
    let (is_root, has_more) =
        unsafe { (libc::geteuid() == 0, libc::getauxval(libc::AT_SECURE) != 0) };
    if std::env::var_os(ROLE).is_some() {
        let ram = Config::from_environment().expect("settings").ram;
        println!("more rights {has_more}, {ram} bytes");
        return;
    }
    if !is_root {
        println!("only root can make a program of another user's");
        return;
    }
    let (owner, user) = (65_533, 65_534);
    let copy = PathBuf::from(format!("/var/tmp/deepheap-setuid-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().expect("this test"), &copy).expect("a copy");
    std::os::unix::fs::chown(&copy, Some(owner), Some(owner)).expect("another owner");
    let mut said = Vec::new();
    for mode in [0o755, 0o4755] {
        std::fs::set_permissions(&copy, Permissions::from_mode(mode)).expect("a mode");
        let mut command = Command::new(&copy);
        command.args([NAME, "--exact", "--nocapture"]).current_dir("/").uid(user).gid(user);
        command.env(ROLE, "").env("DEEPHEAP_CONF", "ram:100M");
        let output = command.output().expect("it runs");
        said.push(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    std::fs::remove_file(&copy).expect("our copy");
    assert!(said[0].contains("more rights false, 104857600 bytes"), "{}", said[0]);
    if said[1].contains("more rights false") {
        println!("/var/tmp gives no program more rights (nosuid)");
        return;
    }
    assert!(said[1].contains("more rights true"), "{}", said[1]);
    assert!(!said[1].contains("104857600"), "{}", said[1]);
}

#[test]
fn nothing_given_means_half_of_the_machine() {
    let config = parse("").expect("defaults");
    assert_eq!(config.ram, 4 * GIB);
    assert_eq!(config.store, None);
    assert!(config.children && !config.force && !config.show_stats);
}

#[test]
fn ram_that_is_found_while_the_program_runs_has_a_bound_on_stalls() {
    let told = |conf| {
        let config = parse(conf).expect(conf);
        (config.ram, config.stall.map(|limit| limit.ppm()))
    };
    assert_eq!(told("ram:auto"), (4 * GIB, Some(20_000)));
    assert_eq!(told("stall:5%,ram:auto"), (4 * GIB, Some(50_000)));
    assert_eq!(told("ram:auto,stall:0.5 %"), (4 * GIB, Some(5_000)));
    assert_eq!(told("ram:1G,stall:3%"), (GIB, Some(30_000)));
    assert_eq!(told("ram:1G,stall:off"), (GIB, None));
    assert_eq!(told("ram:1G,tier:/d"), (GIB, Some(200_000)));
    assert_eq!(told("ram:1G,stall:5%,tier:/d"), (GIB, Some(50_000)));
    assert_eq!(told("ram:1G,tier:/d,stall:off"), (GIB, None));
    assert_eq!(told("stall:off,ram:1G,tier:/d"), (GIB, None));
    assert_eq!(
        parse(&parse("ram:auto,stall:2.5%").expect("conf").to_conf()),
        parse("ram:4G,stall:2.5%")
    );
    for wrong in ["2", "0%", "0.05%", "51%", "-1%", "%", "nan%", "much"] {
        let said = refusal(&format!("stall:{wrong}"));
        assert!(said.contains("write a percentage of the run time from 0.1% to 50%"), "{said}");
    }
    let said = refusal("ram:auto,page_buffer:25%");
    assert!(said.contains("page_buffer 25% is impossible") && said.contains("stall:off"), "{said}");
}

#[test]
fn a_second_tier_has_its_size_behind_its_last_colon_and_other_colons_are_of_its_path() {
    let told = |conf: &str| {
        let config = parse(conf).expect(conf);
        assert_eq!(parse(&config.to_conf()), Ok(config.clone()), "{conf}");
        let SecondTier { path, size } = config.tier.expect(conf);
        (path.to_str().expect("text").to_owned(), size)
    };
    let at = |path: &str, size| (path.to_owned(), size);
    assert_eq!(told("tier:/d"), at("/d", STORE_SIZE_DEFAULT));
    assert_eq!(told("tier:/d:20G"), at("/d", Share::Bytes(20 * GIB)));
    assert_eq!(told("tier: /d : 50 % "), at("/d ", Share::Percent(50)));
    assert_eq!(told("tier:/by-path/pci-0:1f"), at("/by-path/pci-0:1f", STORE_SIZE_DEFAULT));
    assert_eq!(told("tier:/a:b:1.5G"), at("/a:b", Share::Bytes(3 * GIB / 2)));
    assert_eq!(told("tier:/a:64M:90%"), at("/a:64M", STORE_SIZE_DEFAULT));
    assert_eq!(told("tier:/a:500%"), at("/a:500%", STORE_SIZE_DEFAULT));
    for (conf, said) in [
        ("tier::1G", "tier is empty: give a path"),
        ("tier:/a:1", "tier 1 B is impossible: give at least 16.0 MiB"),
        ("tier:/a:5T", "4.00 TiB at most"),
        ("tier_size:1G", "there is no setting 'tier_size'"),
    ] {
        let refused = refusal(conf);
        assert!(refused.contains(said), "{conf}: {refused}");
    }
}

#[test]
fn a_memory_cgroup_counts_as_the_machine() {
    let machine = Machine { memory_bytes: 8 * GIB, cgroup_limit_bytes: Some(GIB) };
    assert_eq!(Config::default_on(machine).ram, GIB / 2);
    let refused = Config::parse_on(machine, "ram:2G").expect_err("over the limit").to_string();
    assert!(refused.contains("memory cgroup"), "{refused}");
}

#[test]
fn a_pool_has_a_name_that_can_be_a_files_and_no_bound_on_stalls() {
    assert_eq!(
        parse("pool: ni-gh_t.2 ").map(|config| config.pool),
        Ok(Some("ni-gh_t.2".to_owned()))
    );
    for wrong in ["", "a/b", "a b", "é", "123456789012345678901234567890123"] {
        let said = refusal(&format!("pool:{wrong}"));
        assert!(said.contains("letters, digits"), "{said}");
    }
    let said = refusal("pool:night,ram:auto");
    assert!(said.contains("pool night is impossible") && said.contains("stall:off"), "{said}");
    let said = refusal("pool:night,page_buffer:25%");
    assert!(said.contains("page_buffer 25% is impossible") && said.contains("no pool"), "{said}");
}

#[test]
fn every_key_is_read() {
    let config = parse(
        "ram:25%, store:/a\\,b\\\\c,store_size:20G,store_floor:3G,\
         tier:/d:1T,stall:off,\
         overcommit:strict,page_buffer:40%,segment:512K,\
         compress:LZ4,objects:64-2K,micro-pages:on,mmap:2M,strides:no,sequences:no,\
         discard:no,stats:/tmp/s.json,show_stats:yes,\
         trace:/tmp/t,quiet:yes,children:no,force:1,encrypt:yes,",
    )
    .expect("all keys");
    let expected = Config {
        ram: 2 * GIB,
        stall: None,
        pool: None,
        store: Some(PathBuf::from("/a,b\\c")),
        store_size: Share::Bytes(20 * GIB),
        tier: Some(SecondTier { path: PathBuf::from("/d"), size: Share::Bytes(1024 * GIB) }),
        store_floor: Some(Share::Bytes(3 * GIB)),
        overcommit: Overcommit::Strict,
        micro_pages: true,
        strides: false,
        sequences: false,
        discard: false,
        stats_file: Some(PathBuf::from("/tmp/s.json")),
        trace_file: Some(PathBuf::from("/tmp/t")),
        show_stats: true,
        quiet: true,
        children: false,
        force: true,
        encrypt: true,
        page_buffer: Some(Share::Percent(40)),
        compress: Compress::Lz4,
        objects: Some(64..=2048),
        mmap: Some(2 << 20),
        segment_bytes: 512 << 10,
    };
    assert_eq!(config, expected);
}

#[test]
fn the_document_has_every_key() {
    let mut table =
        "| `DEEPHEAP_CONF` | `deepheap run` | | without it |\n|---|---|---|---|\n".to_owned();
    for key in &KEYS {
        let value = if key.is_flag() { String::new() } else { format!(" {}", key.value) };
        let option = match key.has_option {
            true => format!("`{}{value}`", key.option()),
            false => String::new(),
        };
        let (name, value, what, without) = (key.name, key.value, key.what, key.without);
        table += &format!("| `{name}:{value}` | {option} | {what} | {without} |\n");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tuning.md");
    let document = std::fs::read_to_string(path).expect("the document");
    assert!(document.contains(&table), "docs/tuning.md is to have this table:\n{table}");
}

#[test]
fn blanks_around_keys_and_values_do_not_count_unless_escaped() {
    let store = |conf| parse(conf).map(|config| config.store);
    let path = |text| Ok(Some(PathBuf::from(text)));
    assert_eq!(store(" ram : 1G , store: /mnt/ssd , force: yes "), path("/mnt/ssd"));
    assert_eq!(store("store: /a b/c "), path("/a b/c"));
    assert_eq!(store("store:\\ /a\\  "), path(" /a "));
    assert_eq!(store("store:/a\\\\ "), path("/a\\"));
}

#[test]
fn a_file_system_keeps_a_floor_of_a_twentieth_and_a_gib_if_it_is_not_small() {
    let floor = |conf: &str, bytes| parse(conf).expect("settings").floor_of(bytes);
    assert_eq!(floor("", 100 * GIB), 5 * GIB);
    assert_eq!(floor("", 10 * GIB), GIB);
    assert_eq!(floor("", 4 * GIB), 4 * GIB / 20);
    assert_eq!(floor("store_floor:300M", 100 * GIB), 300 << 20);
    assert_eq!(floor("store-floor:10%", 100 * GIB), 10 * GIB);
    assert_eq!(floor("store_floor:0", 100 * GIB), 0);
    assert_eq!(floor("store_floor:0%", 100 * GIB), 0);
}

#[test]
fn a_refusal_names_the_text_and_the_way_out() {
    for (conf, said) in [
        ("ram", "key:value"),
        ("rma:2G", "the settings are ram, store, store_size"),
        ("ram:2Q", "'2Q' is not a size"),
        ("ram:8M", "at least 16.0 MiB"),
        ("ram:0%", "at least 16.0 MiB"),
        ("ram:9G", "only 8.00 GiB"),
        ("store_size:0%", "at least 16.0 MiB"),
        ("segment:50%", "percentage makes no sense"),
        ("store_size:1M", "at least 16.0 MiB"),
        ("store_size:5T", "4.00 TiB at most"),
        ("segment:768K", "power of two"),
        ("segment:16M", "power of two"),
        ("page_buffer:200%", "1% to 100%"),
        ("ram:1G,page_buffer:2G", "a part of it"),
        ("page_buffer:1M", "at least 2.00 MiB"),
        ("compress:zstd", "write auto, off or lz4"),
        ("objects:64", "write MIN-MAX, for example 64-2K"),
        ("objects:auto", "'auto' is not understood"),
        ("objects:64-2Q", "'2Q' is not a size"),
        ("objects:-64", "'-64' is not understood: write MIN-MAX"),
        ("objects:10-20-30", "'10-20-30' is not understood: write MIN-MAX"),
        ("objects:1500-100", "objects 1500-100 is impossible: give the smaller first, 100-1500"),
        ("objects:0-64", "objects 0-64 is impossible: the smallest object has 1 byte"),
        ("objects:64-1M", "objects 64-1M is impossible: the largest object has 64.0 KiB"),
        ("overcommit:maybe", "'maybe' is not understood: write lazy or strict"),
        ("store_floor:120%", "1% to 100%"),
        ("children:maybe", "write yes or no"),
        ("store:", "store is empty: give a path"),
        ("store:  ", "store is empty: give a path"),
        ("ram:-1", "'-1' is not a size: it is negative"),
        ("ram:1.5.5G", "'1.5.5G' is not a size: its number has two points"),
        ("ram:1G,store:/a,ram:1G", "ram is set twice: set it once"),
        ("store_size:1G,store-size:2G", "store_size is set twice: set it once"),
        ("store:/a\\b", "stray backslash"),
        ("store:/a,b", "'b' is no setting"),
    ] {
        let refused = refusal(conf);
        assert!(refused.contains(said), "{conf}: {refused}");
    }
}

fn any_config() -> impl Strategy<Value = Config> {
    let path = || proptest::option::of("[a-z/,\\\\: %é]{1,24}".prop_map(PathBuf::from));
    let store_size = prop_oneof![
        (1u32..=100).prop_map(Share::Percent),
        (16u64 << 20..1 << 42).prop_map(Share::Bytes),
    ];
    let store_floor = proptest::option::of(prop_oneof![
        (1u32..=100).prop_map(Share::Percent),
        (0u64..1 << 42).prop_map(Share::Bytes),
    ]);
    let page_buffer = prop_oneof![
        (13u32..=100).prop_map(Share::Percent),
        (2u64 << 20..16 << 20).prop_map(Share::Bytes),
    ];
    let sizes = (1usize..=64 << 10, 1usize..=64 << 10).prop_map(|(a, b)| a.min(b)..=a.max(b));
    let objects = proptest::option::of(sizes);
    let compress = prop_oneof![Just(Compress::Auto), Just(Compress::Off), Just(Compress::Lz4),];
    (
        (16u64 << 20..8 * GIB, proptest::option::of(1_000u32..=500_000)),
        (path(), path(), path(), path()),
        (store_size.clone(), store_floor, store_size),
        any::<[bool; 5]>(),
        (proptest::option::of(page_buffer), compress),
        18u32..=23,
        (objects, proptest::option::of(0usize..1 << 40)),
    )
        .prop_map(
            |(
                (ram, stall),
                (store, tier, stats_file, trace_file),
                (store_size, store_floor, tier_size),
                flags,
                parts,
                segment,
                (objects, mmap),
            )| Config {
                ram,
                // The size of the page buffer cannot be fixed then, unless there is a second tier.
                stall: stall.filter(|_| parts.0.is_none()).and_then(StallLimit::of_ppm),
                pool: (stall.is_none() && parts.0.is_none() && flags[0]).then(|| "p".to_owned()),
                store,
                store_size,
                tier: tier.map(|path| SecondTier { path, size: tier_size }),
                store_floor,
                overcommit: if flags[3] { Overcommit::Strict } else { Overcommit::Lazy },
                stats_file,
                trace_file,
                micro_pages: flags[0] != flags[2],
                strides: flags[4],
                sequences: flags[2] != flags[4],
                discard: flags[3] != flags[4],
                show_stats: flags[0],
                quiet: flags[1] != flags[2],
                children: flags[1],
                force: flags[2],
                encrypt: flags[0] != flags[1],
                page_buffer: parts.0,
                compress: parts.1,
                objects,
                mmap,
                segment_bytes: 1 << segment,
            },
        )
}

/// How many texts are tried in each of the tests below; with the variable set, as many as it says.
fn fuzz_config() -> ProptestConfig {
    let wanted = std::env::var("DEEPHEAP_FUZZ").ok();
    let cases = wanted.map_or(20_000, |cases| cases.parse().expect("DEEPHEAP_FUZZ"));
    ProptestConfig::with_cases(cases)
}

/// Pieces of settings, right and wrong ones.
fn pieces() -> Vec<&'static str> {
    const WORDS: &str = "ram: stall: pool: auto store: store_size: store-size: store_floor: \
        tier: :1G :16 \
        overcommit: lazy strict page_buffer: compress: mmap: objects: micro_pages: segment: \
        strides: sequences: discard: stats: trace: show_stats: quiet: children: force: \
        encrypt: ram , : \\ \\, \\\\ é % 50% - . 64-2K 1.5G 256M 1T ib lz4 off \
        9999999999999999999999 18446744073709551615 1e9 yes no /var/tmp +1";
    WORDS.split(' ').chain([" ", "\\ ", "\n", "\0", "\u{a0}"]).collect()
}

/// Something done to a text: what, where, and with what.
type Change = (u8, prop::sample::Index, prop::sample::Index);

/// Inserts a piece, takes characters out, doubles a stretch, or cuts the text off.
fn changed(text: &str, changes: &[Change]) -> String {
    let mut text: Vec<char> = text.chars().collect();
    for (what, at, with) in changes {
        let at = at.index(text.len() + 1);
        let end = text.len().min(at + with.index(12));
        match what % 4 {
            0 => drop(text.splice(at..at, with.get(&pieces()).chars())),
            1 => drop(text.drain(at..end)),
            2 => drop(text.splice(at..at, text[at..end].to_vec())),
            _ => text.truncate(at),
        }
    }
    text.into_iter().collect()
}

/// What any text must keep to: it is refused in one line, or what it means can be written and reads
/// back as the same.
fn check_text(conf: &str) -> Result<(), TestCaseError> {
    match parse(conf) {
        Ok(config) => prop_assert_eq!(parse(&config.to_conf()), Ok(config)),
        Err(error) => prop_assert_eq!(error.to_string().lines().count(), 1, "{:?}", error),
    }
    Ok(())
}

proptest! {
    #[test]
    fn what_is_written_reads_back(config in any_config()) {
        prop_assert_eq!(parse(&config.to_conf()), Ok(config));
    }
}

proptest! {
    #![proptest_config(fuzz_config())]

    #[test]
    fn any_text_reads_back_or_is_refused_in_a_line(conf in any::<String>()) {
        check_text(&conf)?;
    }

    #[test]
    fn any_pieces_of_settings_read_back_or_are_refused_in_a_line(
        pieces in prop::collection::vec(prop::sample::select(pieces()), 0..16),
    ) {
        check_text(&pieces.concat())?;
    }

    #[test]
    fn any_change_of_settings_reads_back_or_is_refused_in_a_line(
        config in any_config(),
        changes in prop::collection::vec(any::<Change>(), 1..8),
    ) {
        check_text(&changed(&config.to_conf(), &changes))?;
    }
}
