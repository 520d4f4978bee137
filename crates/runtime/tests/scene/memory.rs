//! Memory: managed objects of a scene, filled with bytes that can be told again from a seed.
//!
//! Guarantees: two objects with different seeds, and two words of one object, differ.
//! Threads: any; an object belongs to one thread at a time.

/// Bytes of a page.
pub const PAGE: usize = 4096;

const WORD: usize = 8;

/// Numbers that look random, from a seed (splitmix64).
pub struct Random(u64);

impl Random {
    /// The same seed gives the same numbers.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// One below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// An empty list with room for `count` objects, all of it in RAM already.
pub fn resident_list(count: usize) -> Vec<Object> {
    let mut list: Vec<Object> = (0..count).map(|address| Object { address, size: 0 }).collect();
    list.clear();
    std::hint::black_box(list)
}

/// A seed to print: fresh unless DEEPHEAP_TEST_SEED names one.
pub fn seed() -> u64 {
    let seed = std::env::var("DEEPHEAP_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 ^ 0xd00d);
    eprintln!("DEEPHEAP_TEST_SEED={seed}");
    seed
}

/// One managed allocation.
#[derive(Debug)]
pub struct Object {
    address: usize,
    size: usize,
}

impl Object {
    /// Of `size` bytes; none if there is no memory.
    pub fn new(size: usize) -> Option<Object> {
        Object::at(deepheap::malloc(size), size)
    }

    /// Of `size` zero bytes.
    pub fn zeroed(size: usize) -> Option<Object> {
        Object::at(deepheap::calloc(1, size), size)
    }

    /// At a multiple of `align`.
    pub fn aligned(align: usize, size: usize) -> Option<Object> {
        Object::at(deepheap::aligned_alloc(align, size), size)
    }

    fn at(address: *mut u8, size: usize) -> Option<Object> {
        (!address.is_null()).then_some(Object { address: address as usize, size })
    }

    /// Where it is.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Its bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    fn words(&self) -> impl Iterator<Item = *mut u64> + use<> {
        let address = self.address;
        (0..self.size / WORD).map(move |index| (address + index * WORD) as *mut u64)
    }

    /// Writes every word.
    pub fn fill(&self, seed: u64) {
        self.fill_from(seed, 0);
    }

    /// Writes every word from a byte on.
    pub fn fill_from(&self, seed: u64, start: usize) {
        for (index, word) in self.words().enumerate().skip(start / WORD) {
            // SAFETY: a word of a live allocation that this object alone names.
            unsafe { word.write_volatile(content(seed, index)) };
        }
    }

    /// The first byte at which it is not as `fill` left it.
    pub fn wrong(&self, seed: u64) -> Option<usize> {
        // SAFETY: a word of a live allocation that this object alone names.
        let is = |word: *mut u64| unsafe { word.read_volatile() };
        let found =
            self.words().enumerate().find(|(index, word)| is(*word) != content(seed, *index));
        found.map(|(index, _)| index * WORD)
    }

    /// That it is as `fill` left it.
    #[track_caller]
    pub fn check(&self, seed: u64) {
        if let Some(at) = self.wrong(seed) {
            panic!("object {self:x?} of seed {seed}: byte {at} is not what was written");
        }
    }

    /// That its first `end` bytes are as `fill` left them.
    #[track_caller]
    pub fn check_bytes(&self, seed: u64, end: usize) {
        Object { address: self.address, size: end }.check(seed);
    }

    /// That all of it is zero.
    #[track_caller]
    pub fn check_zero(&self) {
        for word in self.words() {
            // SAFETY: as in `wrong`.
            let found = unsafe { word.read_volatile() };
            assert_eq!(found, 0, "{self:x?} at {word:?}");
        }
    }

    /// The word at an index.
    pub fn get(&self, index: usize) -> u64 {
        assert!(index < self.size / WORD);
        // SAFETY: checked above; a live allocation.
        unsafe { ((self.address + index * WORD) as *const u64).read_volatile() }
    }

    /// Sets the word at an index.
    pub fn set(&self, index: usize, value: u64) {
        assert!(index < self.size / WORD);
        // SAFETY: checked above; a live allocation.
        unsafe { ((self.address + index * WORD) as *mut u64).write_volatile(value) };
    }

    /// Another size; false if there is no memory, and then nothing has changed.
    #[must_use]
    pub fn resize(&mut self, size: usize) -> bool {
        // SAFETY: a live allocation that this object alone names.
        let moved = unsafe { deepheap::realloc(self.address as *mut u8, size) };
        if moved.is_null() {
            return false;
        }
        (self.address, self.size) = (moved as usize, size);
        true
    }

    /// Frees it.
    pub fn free(self) {
        // SAFETY: a live allocation that this object alone names, and it is gone with this call.
        unsafe { deepheap::free(self.address as *mut u8) };
    }
}

fn content(seed: u64, index: usize) -> u64 {
    // Never zero for long, and not the same from page to page.
    mix(seed ^ ((index as u64) << 32)) | 1
}

/// Objects of one size, each filled from the seed and its place in the list.
pub struct Collection {
    /// The seed of the first.
    pub seed: u64,
    /// The objects.
    pub objects: Vec<Object>,
}

impl Collection {
    /// `count` filled objects.
    pub fn filled(seed: u64, count: usize, size: usize) -> Collection {
        Collection::filled_in(Vec::with_capacity(count), seed, count, size)
    }

    /// As `filled`, in a list that is there already.
    pub fn filled_in(list: Vec<Object>, seed: u64, count: usize, size: usize) -> Collection {
        let mut collection = Collection { seed, objects: list };
        for _ in 0..count {
            assert!(collection.push(size), "no memory for {size} bytes");
        }
        collection
    }

    /// As many as there is memory for.
    pub fn until_full(seed: u64, size: usize) -> Collection {
        let mut collection = Collection { seed, objects: Vec::new() };
        while collection.push(size) {}
        collection
    }

    fn push(&mut self, size: usize) -> bool {
        let Some(object) = Object::new(size) else { return false };
        object.fill(self.seed + self.objects.len() as u64);
        self.objects.push(object);
        true
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> usize {
        self.objects.iter().map(Object::size).sum()
    }

    /// That every one is as it was left.
    #[track_caller]
    pub fn check(&self) {
        self.check_from(0);
    }

    /// That every one from an index on is as it was left.
    #[track_caller]
    pub fn check_from(&self, start: usize) {
        for (index, object) in self.objects.iter().enumerate().skip(start) {
            object.check(self.seed + index as u64);
        }
    }

    /// Frees all of them; the list is left.
    pub fn free(mut self) -> Vec<Object> {
        self.objects.drain(..).for_each(Object::free);
        self.objects
    }
}
