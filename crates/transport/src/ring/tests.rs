//! One thread plays both sides of a ring in plain memory (so miri can run these), then many threads on real ones.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

const S: usize = 32;
const R: usize = 16;
type Small = RingShared<S, R>;

fn publish(producer: &mut Producer, ring: &Small, opcode: u16, body: &[u8]) -> bool {
    let (first, second) = body.split_at(body.len() / 3);
    producer.publish(ring, Kind::Pipelined, opcode, &[], &[first, second]).unwrap()
}

#[test]
fn a_round_trip_is_answered_once() {
    let ring = Small::new();
    let (mut producer, mut consumer) = (Producer::attach(&ring), Consumer::attach(&ring));
    let dependencies = [Dependency { ring: 3, position: 80 }, Dependency { ring: 200, position: 1 << 40 }];
    assert!(producer.publish(&ring, Kind::RoundTrip, 7, &dependencies, &[b"question"]).unwrap());
    assert!(!producer.answered(&ring));
    assert_eq!(ring.client.0.async_tail.load(Ordering::Relaxed), 0, "nobody need wait for a round trip");
    let message = consumer.poll(&ring).unwrap().unwrap();
    assert_eq!((message.position, message.opcode, message.body), (0, 7, &b"question"[..]));
    assert_eq!(message.dependencies, dependencies);
    consumer.reply(&ring, b"a long answer").unwrap();
    assert!(producer.answered(&ring));
    let mut answer = vec![9; 100];
    producer.read_reply(&ring, &mut answer).unwrap();
    assert_eq!(answer, b"a long answer");
    assert_eq!(consumer.poll(&ring).unwrap(), None);
}

#[test]
fn what_is_too_long_is_refused_by_the_sender() {
    let ring = Small::new();
    let (mut producer, mut consumer) = (Producer::attach(&ring), Consumer::attach(&ring));
    let long = vec![0; S * 4];
    assert!(producer.publish(&ring, Kind::Pipelined, 1, &[], &[&long]).is_err());
    assert!(producer.publish(&ring, Kind::Pipelined, WRAP, &[], &[]).is_err());
    assert!(consumer.reply(&ring, &[0; R * 8]).is_err());
    assert_eq!(consumer.poll(&ring).unwrap(), None, "nothing of it was published");
}

#[test]
fn both_ends_go_on_after_a_restart() {
    let ring = Small::new();
    let (mut producer, mut consumer) = (Producer::attach(&ring), Consumer::attach(&ring));
    for round in 0..20u16 {
        assert!(publish(&mut producer, &ring, round, &[round as u8; 20]));
        assert!(publish(&mut producer, &ring, round, b"next"));
        assert_eq!(consumer.poll(&ring).unwrap().unwrap().opcode, round);
        consumer.advance(&ring);
        // A server that polled and was replaced before it executed: the next one sees the same message.
        assert_eq!(consumer.poll(&ring).unwrap().unwrap().body, b"next");
        consumer = Consumer::attach(&ring);
        producer = Producer::attach(&ring);
        assert_eq!(consumer.poll(&ring).unwrap().unwrap().body, b"next");
        consumer.advance(&ring);
    }
}

#[test]
fn several_messages_are_in_hand_and_advanced_over_in_turn() {
    let ring = Small::new();
    let (mut producer, mut consumer) = (Producer::attach(&ring), Consumer::attach(&ring));
    let head = |ring: &Small| ring.server.0.head.load(Ordering::Relaxed);
    // Every place in the area is a burst's first once, and a wrap record ends some.
    let mut wrapped = 0;
    for round in 0..64u16 {
        for part in 0..3 {
            assert!(publish(&mut producer, &ring, 3 * round + part, &[part as u8; 12]));
        }
        let mut got = vec![consumer.poll(&ring).unwrap().unwrap().opcode];
        let begun = head(&ring);
        while let Some(opcode) = consumer
            .follow(&ring, |message| (message.body == [got.len() as u8; 12]).then_some(message.opcode))
            .unwrap()
        {
            got.push(opcode);
        }
        assert_eq!(head(&ring), begun, "nothing of it is done");
        wrapped += usize::from(got.len() < 3);
        for opcode in got.iter().copied().chain((3 * round..3 * round + 3).skip(got.len())) {
            if opcode - 3 * round >= got.len() as u16 {
                assert_eq!(consumer.poll(&ring).unwrap().unwrap().opcode, opcode);
            }
            let before = head(&ring);
            consumer.advance(&ring);
            assert_eq!(head(&ring), before + 24);
        }
        assert!(consumer.poll(&ring).unwrap().is_none());
        // Of another length, so that the next ones lie elsewhere.
        assert!(publish(&mut producer, &ring, 0, &[9; 4]));
        assert_eq!(consumer.poll(&ring).unwrap().unwrap().body, [9; 4]);
        assert_eq!(consumer.follow(&ring, |_| Some(())).unwrap(), None, "there is none");
        consumer.advance(&ring);
    }
    assert!((1..64).contains(&wrapped), "{wrapped}");
}

#[test]
fn what_is_not_wanted_is_not_in_hand() {
    let ring = Small::new();
    let (mut producer, mut consumer) = (Producer::attach(&ring), Consumer::attach(&ring));
    for (opcode, body) in [(1, b"one"), (2, b"two")] {
        assert!(publish(&mut producer, &ring, opcode, body));
    }
    assert_eq!(consumer.poll(&ring).unwrap().unwrap().opcode, 1);
    assert_eq!(consumer.follow(&ring, |message| (message.opcode == 3).then_some(())).unwrap(), None);
    consumer.advance(&ring);
    assert_eq!(consumer.poll(&ring).unwrap().unwrap().body, b"two");
    // One that is replaced before it has executed all that it took.
    assert!(publish(&mut producer, &ring, 3, b"three"));
    consumer = Consumer::attach(&ring);
    assert_eq!(consumer.poll(&ring).unwrap().unwrap().opcode, 2);
    assert_eq!(consumer.follow(&ring, |message| Some(message.opcode)).unwrap(), Some(3));
    consumer.advance(&ring);
    consumer = Consumer::attach(&ring);
    assert_eq!(consumer.poll(&ring).unwrap().unwrap().body, b"three");
}

#[test]
fn another_thread_sees_what_is_pending_up_to_a_position() {
    let ring = Small::new();
    let (mut producer, mut consumer) = (Producer::attach(&ring), Consumer::attach(&ring));
    publish(&mut producer, &ring, 1, b"one");
    publish(&mut producer, &ring, 2, b"two");
    let until = promised(&ring).unwrap();
    publish(&mut producer, &ring, 3, b"three");
    let seen = |ring: &Small| {
        let mut seen = Vec::new();
        let found = any_pending(ring, until, &mut Vec::new(), |opcode, body| {
            seen.push((opcode, body.to_vec()));
            false
        });
        assert!(!found.unwrap());
        seen
    };
    assert_eq!(seen(&ring), [(1, b"one".to_vec()), (2, b"two".to_vec())]);
    assert!(any_pending(&ring, until, &mut Vec::new(), |opcode, _| opcode == 2).unwrap());
    assert!(!is_done(&ring, until).unwrap());
    assert!(is_done(&ring, until + 8 * 100).is_err(), "nobody waits for what is not published");
    for _ in 0..2 {
        consumer.poll(&ring).unwrap();
        consumer.advance(&ring);
    }
    assert!(is_done(&ring, until).unwrap());
    assert_eq!(seen(&ring), []);
}

#[derive(Clone, Debug)]
enum Step {
    Publish(u16, Vec<u8>),
    Execute,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let body = proptest::collection::vec(any::<u8>(), 0..(S * 4 - 8));
    let publish = (0..WRAP, body).prop_map(|(opcode, body)| Step::Publish(opcode, body));
    proptest::collection::vec(prop_oneof![publish, Just(Step::Execute)], 0..if cfg!(miri) { 20 } else { 200 })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 8 } else { 256 }, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Whatever the sizes, what comes out is what went in, in order, across any number of wraps.
    #[test]
    fn a_ring_is_a_queue(steps in steps()) {
        let ring = Small::new();
        let (mut producer, mut consumer) = (Producer::attach(&ring), Consumer::attach(&ring));
        let mut model = std::collections::VecDeque::new();
        for step in steps {
            match step {
                Step::Publish(opcode, body) => {
                    if publish(&mut producer, &ring, opcode, &body) {
                        model.push_back((opcode, body));
                    } else {
                        prop_assert!(!model.is_empty(), "an empty ring has room for every message");
                    }
                }
                Step::Execute => {
                    let got = consumer.poll(&ring).unwrap().map(|m| (m.opcode, m.body.to_vec()));
                    prop_assert_eq!(got, model.pop_front());
                    consumer.advance(&ring);
                }
            }
        }
    }

    /// Whatever the other side writes, a consumer answers with an error or a bounded message and never goes backwards.
    #[test]
    fn a_hostile_client_is_an_error(words in proptest::collection::vec(any::<u64>(), S), lens in
        proptest::collection::vec(0..200u64, S), tail in prop_oneof![0..(S as u64 * 8), any::<u64>()]) {
        let ring = Small::new();
        for (index, (word, len)) in words.iter().zip(&lens).enumerate() {
            // Half of the headers have plausible lengths, so that the walk gets somewhere.
            let word = if index % 2 == 0 { word & !0xffff_0000_ffff_ffff | len } else { *word };
            ring.submission.0[index].store(word, Ordering::Relaxed);
        }
        ring.client.0.tail.store(tail, Ordering::Relaxed);
        let mut consumer = Consumer::attach(&ring);
        let mut last = None;
        for _ in 0..S {
            match consumer.poll(&ring) {
                Ok(Some(message)) => {
                    prop_assert!(message.body.len() < S * 8);
                    prop_assert!(last.is_none_or(|last| message.position > last));
                    last = Some(message.position);
                }
                Ok(None) | Err(_) => break,
            }
            consumer.advance(&ring);
        }
        let _ = any_pending(&ring, tail, &mut Vec::new(), |_, body| body.len() >= S * 8);
    }

    /// The same the other way round.
    #[test]
    fn a_hostile_server_is_an_error(head in any::<u64>(), seq in any::<u64>(), len in any::<u64>()) {
        let ring = Small::new();
        ring.server.0.head.store(head, Ordering::Relaxed);
        let mut producer = Producer::attach(&ring);
        let published = producer.publish(&ring, Kind::RoundTrip, 1, &[], &[b"x"]);
        prop_assert_eq!(published.is_ok(), head == 0);
        ring.reply_seq.0.store(seq, Ordering::Relaxed);
        ring.reply.0[0].store(len, Ordering::Relaxed);
        let mut reply = Vec::new();
        if producer.read_reply(&ring, &mut reply).is_ok() {
            prop_assert!(reply.len() <= (R - 1) * 8);
        }
    }
}
