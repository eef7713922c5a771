//! Counts what a closure allocates at its peak. A test binary that uses it declares
//! `#[global_allocator] static ALLOCATOR: Counting = Counting;`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use protocol::codec::{ALLOCATION_BYTES_FREE, ALLOCATION_PER_FRAME_BYTE};

/// The system's allocator, counting by thread.
pub struct Counting;

thread_local! {
    // Constants without a destructor: using them allocates nothing, so the allocator may.
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let now = NOW.get() + bytes;
    NOW.set(now);
    PEAK.set(PEAK.get().max(now));
}

// SAFETY: every call goes to the system's allocator unchanged, whose contract is the same; counting touches only
// thread-local numbers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size().cast_signed());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: `pointer` came from `System` through `alloc`, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The old and the new block may exist side by side.
        count(size.cast_signed());
        // SAFETY: `pointer` came from `System` through `alloc`, with this layout.
        let new = unsafe { System.realloc(pointer, layout, size) };
        count(-layout.size().cast_signed());
        new
    }
}

/// Asserts that `decode`, given a frame of `frame_bytes`, stays within what one frame may make us allocate.
pub fn assert_bounded<T>(frame_bytes: usize, decode: impl FnOnce() -> T) -> T {
    let before = NOW.get();
    PEAK.set(before);
    let value = decode();
    let peak = (PEAK.get() - before).unsigned_abs();
    let allowed = ALLOCATION_PER_FRAME_BYTE * frame_bytes + ALLOCATION_BYTES_FREE;
    assert!(peak <= allowed, "{peak} bytes allocated for a frame of {frame_bytes}, {allowed} allowed");
    value
}
