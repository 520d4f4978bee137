//! Provision: what the switch needs of the system, opened while the process has the right to.
//!
//! A program may give up rights while its heap is plain: another user, another root, a filter of
//! system calls. So the call that gives them up is preceded by `provide`. A program that keeps its
//! rights opens all of it at the switch, and nothing if it never outgrows RAM.
//!
//! A forked child has the same open file as its parent. Which of them begins to manage first takes
//! a token that they share, and the file with it; another one opens a store of its own, if it may.
//!
//! Guarantees: one process at most has the file as its store.
//! Never: starts a thread: programs that give up rights may not have any.
//! Threads: any, outside the fault path, under `growth` with all signals blocked.

use deepheap_store::Device;
use deepheap_sys::errno::Result;
use deepheap_sys::log::{Piece, say};
use deepheap_sys::signals::Blocked;
use deepheap_sys::token::Token;
use deepheap_sys::userfaultfd::Userfaultfd;

use crate::runtime::{Inside, Runtime, running};
use crate::second_tier;
use crate::start::start_from_environment;
use crate::switch::{Ground, ManageError};

/// See the file's header.
pub(crate) struct Provision {
    pub(crate) ground: Ground,
    /// None: the settings have no second tier.
    pub(crate) tier: Option<core::result::Result<Ground, ManageError>>,
    /// For pages of the object table that leave RAM.
    pub(crate) table: Option<Box<dyn Device>>,
    pub(crate) frames: Frames,
    token: Option<Token>,
}

/// How the kernel tells of touches.
pub(crate) struct Frames {
    /// None: it is to be opened, for that says why it cannot be.
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
        let tier = self.tier.iter().flatten().map(|tier| &tier.device);
        let devices = [&self.ground.device].into_iter().chain(tier).chain(&self.table);
        devices.for_each(|device| device.after_fork());
    }
}

/// Before the program gives up rights. What cannot be opened is opened again at the switch, which
/// says why it cannot. Not in a child of `vfork`: it is in its parent's memory, with descriptors of
/// its own.
pub fn provide() {
    let Some(runtime) = running().or_else(start_from_environment) else { return };
    if runtime.pager().is_some() {
        return;
    }
    let _inside = Inside::enter();
    let _blocked = Blocked::all();
    let mut growth = runtime.growth.lock();
    if runtime.pager().is_none() && !growth.refused && growth.provision.is_none() {
        let token = Token::new().ok();
        let provision = token.and_then(|token| {
            Some(Provision { token: Some(token), ..runtime.open_provision().ok()? })
        });
        growth.provision = provision;
    }
}

impl Runtime {
    /// Opens all of it, for this process alone.
    pub(crate) fn open_provision(&self) -> core::result::Result<Provision, ManageError> {
        let ground = self.open_ground(&self.config, self.segment_buffers(), self.rings())?;
        let tier = self
            .config
            .of_tier()
            .map(|settings| self.open_ground(&settings, second_tier::BUFFERS, second_tier::RINGS));
        let (table, frames) = (self.table_device(), self.open_frames());
        Ok(Provision { ground, tier, table, frames, token: None })
    }

    fn open_frames(&self) -> Frames {
        let shared = self.config.micro_pages.then(Userfaultfd::open_sharing_frames);
        if let Some(Err(errno)) = shared {
            say(&[
                Piece::Text("no micro-pages, the kernel cannot map shared frames: "),
                Piece::Error(errno),
            ]);
        }
        let shared = shared.and_then(Result::ok);
        let is_shared = shared.is_some();
        Frames { userfaultfd: shared.or_else(|| Userfaultfd::open().ok()), is_shared }
    }
}
