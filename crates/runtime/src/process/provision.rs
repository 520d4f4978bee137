//! Provision: what the switch needs of the system, opened.
//!
//! A program may give up rights while its heap is plain (`rights`). A child that it forks off then
//! has the same open file as its parent. Which of them begins to manage first takes a token that
//! they share, and the file with it; another one opens a store of its own, if it may.
//!
//! Guarantees: one process at most has the file as its store.
//! Never: starts a thread: programs that give up rights may not have any.
//! Threads: any, under `growth`.

use deepheap_store::{Device, Key, Options as StoreOptions};
use deepheap_sys::memory::userfaultfd::Userfaultfd;
use deepheap_sys::threads::token::Token;

/// See the file's header.
pub(crate) struct Provision {
    pub(crate) ground: Ground,
    /// None: there is no second tier.
    pub(crate) tier: Option<Ground>,
    /// For pages of the object table that leave RAM.
    pub(crate) table: Option<Box<dyn Device>>,
    pub(crate) frames: Frames,
    /// None: it is used at once.
    pub(crate) token: Option<Token>,
}

/// The device and the options of a store.
pub(crate) struct Ground {
    pub(crate) device: Box<dyn Device>,
    pub(crate) options: StoreOptions,
    pub(crate) key: Option<Key>,
}

/// How the kernel tells of touches.
pub(crate) struct Frames {
    /// None: the pager opens it, and says why it cannot.
    pub(crate) userfaultfd: Option<Userfaultfd>,
    /// Whether small objects may share frames.
    pub(crate) is_shared: bool,
}

impl Provision {
    /// Whether it is this process's to use. Asked once.
    pub(crate) fn claim(&self) -> bool {
        self.token.as_ref().is_none_or(Token::take)
    }

    /// In a forked child, which has other memory, and must not use what its parent's threads use.
    pub(crate) fn after_fork(&mut self) {
        self.frames.userfaultfd = None;
        let tier = self.tier.iter().map(|tier| &tier.device);
        let devices = [&self.ground.device].into_iter().chain(tier).chain(&self.table);
        devices.for_each(|device| device.after_fork());
    }
}
