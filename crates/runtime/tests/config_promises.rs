//! What a configuration promises: it reads back, and it says what is wrong with it.

use std::path::PathBuf;

use deepheap::ObjectPlacement;
use deepheap::config::{CachePolicy, Config, ConfigError, Share};
use deepheap::machine::Machine;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;
const MACHINE: Machine = Machine { memory_bytes: 8 * GIB, cgroup_limit_bytes: None };

fn parse(conf: &str) -> Result<Config, ConfigError> {
    Config::parse_on(MACHINE, conf)
}

fn refusal(conf: &str) -> String {
    parse(conf).expect_err(conf).to_string()
}

#[test]
fn nothing_given_means_half_of_the_machine() {
    let config = parse("").expect("defaults");
    assert_eq!(config.ram, 4 * GIB);
    assert_eq!(config.store, None);
    assert!(config.children && !config.force && !config.show_stats);
}

#[test]
fn a_memory_cgroup_counts_as_the_machine() {
    let machine = Machine { memory_bytes: 8 * GIB, cgroup_limit_bytes: Some(GIB) };
    assert_eq!(Config::default_on(machine).ram, GIB / 2);
    let refused = Config::parse_on(machine, "ram:2G").expect_err("over the limit").to_string();
    assert!(refused.contains("memory cgroup"), "{refused}");
}

#[test]
fn every_key_is_read() {
    let config = parse(
        "ram:25%, store:/a\\,b\\\\c,store_size:20G,page_buffer:40%,segment:512K,\
         objects:64-2K,cache-policy:LRU,pool_step:500,stats:/tmp/s.json,show_stats:yes,\
         children:no,force:1,",
    )
    .expect("all keys");
    let expected = Config {
        ram: 2 * GIB,
        store: Some(PathBuf::from("/a,b\\c")),
        store_size: Share::Bytes(20 * GIB),
        stats_file: Some(PathBuf::from("/tmp/s.json")),
        show_stats: true,
        children: false,
        force: true,
        page_buffer: Some(Share::Percent(40)),
        objects: Some(ObjectPlacement::Range { min: 64, max: 2048 }),
        cache_policy: CachePolicy::Lru,
        segment_bytes: 512 << 10,
        pool_step: 500,
    };
    assert_eq!(config, expected);
    let auto = parse("objects:auto,cache_policy:clock").expect("words");
    assert_eq!(auto.objects, Some(ObjectPlacement::Auto));
    assert_eq!(auto.cache_policy, CachePolicy::Clock);
    assert_eq!(parse("ram:1G,ram:2G").map(|config| config.ram), Ok(2 * GIB));
}

#[test]
fn a_refusal_names_the_text_and_the_way_out() {
    for (conf, said) in [
        ("ram", "key:value"),
        ("rma:2G", "ram, store, store_size"),
        ("ram:2Q", "'2Q' is not a size"),
        ("ram:8M", "at least 16.0 MiB"),
        ("ram:0%", "at least 16.0 MiB"),
        ("ram:9G", "only 8.00 GiB"),
        ("store_size:0%", "1% to 100%"),
        ("segment:50%", "percentage makes no sense"),
        ("store_size:1M", "at least 16.0 MiB"),
        ("store_size:5T", "4.00 TiB at most"),
        ("segment:768K", "power of two"),
        ("segment:16M", "power of two"),
        ("page_buffer:200%", "1% to 100%"),
        ("ram:1G,page_buffer:2G", "a part of it"),
        ("page_buffer:1M", "at least 2.00 MiB"),
        ("objects:64", "write MIN-MAX, for example 64-2K, or auto"),
        ("objects:sometimes", "'sometimes' is not understood"),
        ("objects:64-2Q", "'2Q' is not a size"),
        ("objects:-64", "is not a size"),
        ("objects:2K-64", "the smaller first"),
        ("objects:0-64", "1 at least"),
        ("objects:64-1M", "64.0 KiB at most"),
        ("cache_policy:arc", "write s3fifo, lru or clock"),
        ("pool_step:0", "1 at least"),
        ("pool_step:10K", "a number of objects"),
        ("children:maybe", "write yes or no"),
        ("store:", "store has no path"),
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
    let page_buffer = prop_oneof![
        (13u32..=100).prop_map(Share::Percent),
        (2u64 << 20..16 << 20).prop_map(Share::Bytes),
    ];
    let objects = proptest::option::of(prop_oneof![
        Just(ObjectPlacement::Auto),
        (1usize..=64 << 10, 1usize..=64 << 10)
            .prop_map(|(a, b)| ObjectPlacement::Range { min: a.min(b), max: a.max(b) }),
    ]);
    let policy =
        prop_oneof![Just(CachePolicy::S3Fifo), Just(CachePolicy::Lru), Just(CachePolicy::Clock)];
    (
        16u64 << 20..8 * GIB,
        (path(), path()),
        store_size,
        any::<[bool; 3]>(),
        proptest::option::of(page_buffer),
        (18u32..=23, 1u32..=u32::MAX),
        (objects, policy),
    )
        .prop_map(
            |(ram, (store, stats_file), store_size, flags, page_buffer, steps, tuned)| Config {
                ram,
                store,
                store_size,
                stats_file,
                show_stats: flags[0],
                children: flags[1],
                force: flags[2],
                page_buffer,
                objects: tuned.0,
                cache_policy: tuned.1,
                segment_bytes: 1 << steps.0,
                pool_step: steps.1,
            },
        )
}

proptest! {
    #[test]
    fn what_is_written_reads_back(config in any_config()) {
        prop_assert_eq!(parse(&config.to_conf()), Ok(config));
    }

    #[test]
    fn no_text_panics(conf in "\\PC*") {
        let _ = parse(&conf);
    }
}
