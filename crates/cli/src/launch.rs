//! Launch: `deepheap run`, from the program as it was named to the process that becomes it.

pub(crate) mod elf;
pub(crate) mod image;
pub(crate) mod library;
pub(crate) mod parent;
pub(crate) mod program;
pub(crate) mod run;
