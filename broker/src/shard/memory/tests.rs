//! Who goes on and who waits, by numbers of bytes.

use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use super::*;

/// Nothing is small.
const UNDIVIDED: Limits = Limits { bytes_max: 100, reserve: 0, small_frame_max: 0 };

/// A quarter is for frames of up to 10 bytes.
const DIVIDED: Limits = Limits { bytes_max: 100, reserve: 25, small_frame_max: 10 };

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// One who reads from a client.
struct Reader {
    place: Place,
    charge: Charge,
    wakes: Arc<Count>,
}

impl Reader {
    fn new(memory: &Rc<Memory>, bytes: usize) -> Self {
        Self::of(memory, Size::Large, bytes)
    }

    /// With a frame of which so many bytes are here.
    fn of(memory: &Rc<Memory>, size: Size, bytes: usize) -> Self {
        let mut charge = memory.charge();
        charge.add(bytes);
        Self { place: memory.place(size), charge, wakes: Arc::default() }
    }

    /// Reads so much, if it may.
    fn read(&mut self, bytes: usize) -> bool {
        let may = self.may_read();
        if may {
            self.charge.add(bytes);
        }
        may
    }

    fn may_read(&mut self) -> bool {
        let waker = Waker::from(self.wakes.clone());
        self.place.poll(&mut self.charge, &Context::from_waker(&waker)).is_ready()
    }

    /// Whether it was woken since the last time.
    fn is_woken(&self) -> bool {
        self.wakes.0.swap(0, Ordering::SeqCst) > 0
    }
}

fn full(memory: &Rc<Memory>) -> Charge {
    let mut charge = memory.charge();
    charge.add(100);
    charge
}

#[test]
fn those_who_wait_go_on_in_the_order_in_which_they_came() {
    let memory = Memory::with(UNDIVIDED);
    let held = full(&memory);
    let mut readers: Vec<_> = (0..4).map(|_| Reader::new(&memory, 0)).collect();
    assert!(readers.iter_mut().all(|reader| !reader.may_read()));
    let mut late = Reader::new(&memory, 0);
    drop(held);
    assert!(!late.may_read(), "there is room, but others came before");
    for reader in readers.iter_mut().chain([&mut late]) {
        assert!(reader.is_woken() && reader.may_read());
    }
    assert!(!memory.is_under_pressure());
}

#[test]
fn who_takes_all_the_room_leaves_the_next_to_wait() {
    let memory = Memory::with(UNDIVIDED);
    let held = full(&memory);
    let mut readers: Vec<_> = (0..3).map(|_| Reader::new(&memory, 0)).collect();
    assert!(readers.iter_mut().all(|reader| !reader.may_read()));
    drop(held);
    assert!(readers[0].may_read());
    let held = full(&memory);
    assert!(readers[1].is_woken() && !readers[1].may_read());
    // It gives up: the next one must learn of room all the same.
    drop(readers.remove(1));
    assert!(readers[1].is_woken() && !readers[1].may_read());
    drop(held);
    assert!(readers[1].is_woken() && readers[1].may_read());
    assert_eq!(memory.used(), 0);
}

#[test]
fn one_frame_that_has_begun_goes_beyond_the_budget_until_its_copies_are_gone() {
    let memory = Memory::with(UNDIVIDED);
    let held = full(&memory);
    let (mut fresh, mut first, mut second) =
        (Reader::new(&memory, 0), Reader::new(&memory, 10), Reader::new(&memory, 10));
    assert!(!fresh.may_read() && first.may_read() && !second.may_read());
    let frame = first.charge.split(10);
    let copy = frame.copied(10);
    drop(frame);
    assert!(!second.may_read());
    drop(copy);
    // The one that waits first may not go beyond, and lets the one pass that may.
    assert!(fresh.is_woken() && !fresh.may_read());
    assert!(second.is_woken() && second.may_read());
    drop(held);
    assert!(fresh.is_woken() && fresh.may_read());
}

#[test]
fn charges_that_end_on_other_threads_wake_who_waits() {
    let memory = Memory::with(UNDIVIDED);
    for _ in 0..200 {
        let charges: Vec<_> = (0..2)
            .map(|_| {
                let mut charge = memory.charge();
                charge.add(60);
                charge
            })
            .collect();
        let mut reader = Reader::new(&memory, 0);
        let threads: Vec<_> =
            charges.into_iter().map(|charge| std::thread::spawn(move || drop(charge))).collect();
        let went_on = reader.may_read();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(went_on || reader.is_woken());
        assert!(went_on || reader.may_read());
    }
    assert_eq!(memory.used(), 0);
}

/// Twelve large frames that came together left nothing to a small one for seconds.
#[test]
fn large_frames_leave_their_part_to_small_ones() {
    let memory = Memory::with(DIVIDED);
    let mut large: Vec<_> = (0..12).map(|_| Reader::of(&memory, Size::Large, 1)).collect();
    // One of them goes beyond the budget; the others wait.
    while large.iter_mut().map(|reader| reader.read(9)).filter(|has_read| *has_read).count() > 1 {}
    assert!(large.iter_mut().filter_map(|reader| reader.read(500).then_some(())).count() == 1);
    assert_eq!(memory.pressure(), Some(Pressure::OfLarge));
    let mut small: Vec<_> = (0..5).map(|_| Reader::of(&memory, Size::Small, 0)).collect();
    for reader in &mut small {
        // Those that wait with large frames keep the byte by which they learned of it in this part.
        assert!(reader.read(5), "{:?}", memory.ledger.used());
    }
    // What is for them is used up, and all of the rest too.
    let mut next = Reader::of(&memory, Size::Small, 0);
    assert!(!next.read(5));
    assert_eq!(memory.pressure(), Some(Pressure::OfAll));
    drop(small.pop());
    assert!(next.is_woken() && next.read(5));
    drop((large, small, next));
    assert_eq!(memory.ledger.used(), Used { small: 0, large: 0 });
}

#[test]
fn small_frames_take_all_and_a_large_one_waits_no_longer_than_they_do() {
    let memory = Memory::with(DIVIDED);
    let mut small: Vec<_> = (0..10).map(|_| Reader::of(&memory, Size::Small, 0)).collect();
    assert!(small.iter_mut().all(|reader| reader.read(10)), "nobody else needs it");
    let mut waiting = Reader::of(&memory, Size::Small, 0);
    let mut large = Reader::of(&memory, Size::Large, 0);
    let mut late = Reader::of(&memory, Size::Small, 0);
    assert!(!waiting.may_read() && !large.may_read() && !late.may_read());
    drop(small.pop());
    assert!(!late.may_read() && !large.may_read(), "who waits the longest is first");
    assert!(waiting.is_woken() && waiting.read(10));
    drop(small.pop());
    assert!(!late.may_read(), "small frames above their part wait behind large ones");
    assert!(large.is_woken() && large.read(10));
    drop(small.drain(..7));
    assert!(late.is_woken() && late.read(10));
    assert_eq!(memory.pressure(), None);
}

/// However many small ones come: who came before them goes first.
#[test]
fn a_stream_of_small_frames_starves_no_large_one() {
    let memory = Memory::with(DIVIDED);
    let mut small: Vec<_> = (0..10).map(|_| Reader::of(&memory, Size::Small, 0)).collect();
    assert!(small.iter_mut().all(|reader| reader.read(10)));
    for _ in 0..20 {
        let mut large = Reader::of(&memory, Size::Large, 0);
        assert!(!large.may_read());
        small.pop();
        let mut late = Reader::of(&memory, Size::Small, 0);
        assert!(!late.read(10));
        assert!(large.is_woken() && large.read(10));
        drop(large);
        assert!(late.is_woken() && late.read(10));
        small.push(late);
    }
}

/// A frame of unknown size counts as small until it is known not to be, and then until it may go on.
#[test]
fn a_frame_that_turns_out_large_leaves_the_part_of_small_ones_when_it_goes_on() {
    let memory = Memory::with(DIVIDED);
    let mut frame = Reader::of(&memory, Size::Small, 0);
    assert!(frame.read(4));
    let mut full = Reader::of(&memory, Size::Large, 0);
    assert!(full.read(75));
    frame.place = memory.place(Size::Large);
    // It has begun, and nobody else is beyond the budget.
    assert!(frame.read(6));
    assert_eq!(memory.ledger.used(), Used { small: 0, large: 85 });
    let mut other = Reader::of(&memory, Size::Large, 4);
    assert!(!other.may_read());
    assert_eq!(memory.ledger.used(), Used { small: 4, large: 85 });
    assert_eq!(memory.pressure(), Some(Pressure::OfLarge));
    assert!(!Pressure::OfLarge.is_of(Size::Small) && Pressure::OfAll.is_of(Size::Small));
    drop(frame);
    assert!(other.is_woken() && other.may_read());
    // The frame behind it is small.
    other.charge.add(8);
    let large = other.charge.split(11);
    other.place = memory.place(Size::Small);
    assert!(other.may_read());
    assert_eq!(memory.ledger.used(), Used { small: 1, large: 75 + 11 });
    drop(large);
}
