//! What loom checks: every interleaving of the two ends, with sleeping and waking, and of three rings that depend on each
//! other. Run with `RUSTFLAGS="--cfg loom" cargo test -p transport --lib`.

use super::*;
use loom::sync::Arc;
use loom::thread;
use std::time::Duration;

type Tiny = RingShared<8, 4>;

fn check(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(test);
}

/// Waits for the next message as a server thread does, and executes it.
fn execute(ring: &Tiny, consumer: &mut Consumer, reply: Option<&[u8]>) -> Vec<u8> {
    loop {
        if let Some(message) = consumer.poll(ring).unwrap() {
            let body = message.body.to_vec();
            match reply {
                Some(reply) => consumer.reply(ring, reply).unwrap(),
                None => consumer.advance(ring),
            }
            return body;
        }
        ring.sleeping.0.park(Duration::MAX, || consumer.has_message(ring));
    }
}

/// Neither side sleeps through what it waits for, and what was published is what is read.
#[test]
fn submit_consume_reply() {
    check(|| {
        let ring = Arc::new(Tiny::new());
        let server = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let mut consumer = Consumer::attach(&ring);
                assert_eq!(execute(&ring, &mut consumer, None), b"async");
                assert_eq!(execute(&ring, &mut consumer, Some(b"yes")), b"call");
            })
        };
        let mut producer = Producer::attach(&ring);
        assert!(producer.publish(&ring, Kind::Pipelined, 1, &[], &[b"async"]).unwrap());
        assert!(producer.publish(&ring, Kind::RoundTrip, 2, &[], &[b"call"]).unwrap());
        while !producer.answered(&ring) {
            ring.waiting.0.park(Duration::MAX, || producer.answered(&ring));
        }
        let mut reply = Vec::new();
        producer.read_reply(&ring, &mut reply).unwrap();
        assert_eq!(reply, b"yes");
        server.join().unwrap();
    });
}

/// A client that finds no room is woken when there is some, and writes over nothing that is not executed.
#[test]
fn a_full_ring_waits_for_room() {
    check(|| {
        let ring = Arc::new(Tiny::new());
        let server = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let mut consumer = Consumer::attach(&ring);
                for expected in [[1u8; 20], [2; 20], [3; 20]] {
                    assert_eq!(execute(&ring, &mut consumer, None), expected);
                }
            })
        };
        let mut producer = Producer::attach(&ring);
        for body in [[1u8; 20], [2; 20], [3; 20]] {
            loop {
                if producer.publish(&ring, Kind::Pipelined, 1, &[], &[&body]).unwrap() {
                    break;
                }
                while !producer.has_drained(&ring) {
                    thread::yield_now();
                }
            }
        }
        server.join().unwrap();
    });
}

/// A call that begins after another thread's pipelined call has returned is executed after it, whichever server thread is
/// faster: either it carries the dependency, or the effects are visible already.
#[test]
fn a_later_call_comes_after_what_has_returned() {
    check(|| {
        let rings = Arc::new((Tiny::new(), Tiny::new()));
        let effect = Arc::new(AtomicU64::new(0));
        let first = {
            let (rings, effect) = (Arc::clone(&rings), Arc::clone(&effect));
            thread::spawn(move || {
                let mut consumer = Consumer::attach(&rings.0);
                while consumer.poll(&rings.0).unwrap().is_none() {
                    rings.0.sleeping.0.park(Duration::MAX, || consumer.has_message(&rings.0));
                }
                effect.store(1, Ordering::Relaxed);
                consumer.advance(&rings.0);
            })
        };
        let second = {
            let (rings, effect) = (Arc::clone(&rings), Arc::clone(&effect));
            thread::spawn(move || {
                let mut consumer = Consumer::attach(&rings.1);
                let dependencies = loop {
                    if let Some(message) = consumer.poll(&rings.1).unwrap() {
                        break message.dependencies.to_vec();
                    }
                    rings.1.sleeping.0.park(Duration::MAX, || consumer.has_message(&rings.1));
                };
                for dependency in dependencies {
                    assert_eq!(dependency.ring, 0);
                    while !is_done(&rings.0, dependency.position).unwrap() {
                        thread::yield_now();
                    }
                }
                assert_eq!(effect.load(Ordering::Relaxed), 1);
                consumer.advance(&rings.1);
            })
        };
        let mut producer = Producer::attach(&rings.0);
        assert!(producer.publish(&rings.0, Kind::Pipelined, 1, &[], &[]).unwrap());
        // The call has returned; the program now lets another thread make one, on its own ring.
        let dependencies: Vec<_> =
            promised(&rings.0).map(|position| Dependency { ring: 0, position }).into_iter().collect();
        let mut producer = Producer::attach(&rings.1);
        assert!(producer.publish(&rings.1, Kind::Pipelined, 2, &dependencies, &[]).unwrap());
        first.join().unwrap();
        second.join().unwrap();
    });
}

/// A look at what another ring has pending never hands out bytes that are being written over.
#[test]
fn a_look_at_pending_messages_sees_whole_ones() {
    check(|| {
        let ring = Arc::new(Tiny::new());
        let mut producer = Producer::attach(&ring);
        assert!(producer.publish(&ring, Kind::Pipelined, 1, &[], &[&[1; 16]]).unwrap());
        let until = promised(&ring).unwrap();
        let server = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let mut consumer = Consumer::attach(&ring);
                assert!(consumer.poll(&ring).unwrap().is_some());
                consumer.advance(&ring);
            })
        };
        let other = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let look = any_pending(&ring, until, &mut Vec::new(), |opcode, body| {
                    assert_eq!((opcode, body), (1, &[1; 16][..]));
                    false
                });
                assert!(!look.unwrap());
            })
        };
        for opcode in [2, 3] {
            // The second one comes to lie where the first message was, if that is executed by now.
            let _ = producer.publish(&ring, Kind::Pipelined, opcode, &[], &[&[opcode as u8; 16]]).unwrap();
        }
        server.join().unwrap();
        other.join().unwrap();
    });
}
