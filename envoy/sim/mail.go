package sim

import (
	"math"
	"slices"
	"sync"
	"time"
)

// mail is what other ends of gRPC streams have said to the VMs of a thread, in the
// order in which it becomes due.
type mail struct {
	sync.Mutex
	letters []letter
}

type letter struct {
	due     int64 // by the monotonic clock
	stream  *grpcStream
	message []byte
	ends    bool // with this status, in place of a message
	status  uint32
}

func (m *mail) post(l letter) {
	m.Lock()
	defer m.Unlock()
	l.due = max(l.due, l.stream.lastDue) // a stream keeps its order
	l.stream.lastDue = l.due
	i, _ := slices.BinarySearchFunc(m.letters, l.due, func(other letter, due int64) int {
		if other.due <= due {
			return -1
		}
		return 1
	})
	m.letters = slices.Insert(m.letters, i, l)
}

// take returns the first letter that is due.
func (m *mail) take(now int64) (l letter, ok bool) {
	m.Lock()
	defer m.Unlock()
	if len(m.letters) == 0 || m.letters[0].due > now {
		return letter{}, false
	}
	l = m.letters[0]
	m.letters = m.letters[1:]
	return l, true
}

// due returns when the first letter is.
func (m *mail) due() int64 {
	m.Lock()
	defer m.Unlock()
	if len(m.letters) == 0 {
		return math.MaxInt64
	}
	return m.letters[0].due
}

// Inbox takes what the other end of a stream says. It may be used in any
// goroutine, also in a call from the filter. The filter hears of it in this order, once the
// delay is over and somebody delivers: Deliver, Host.TickDue.
type Inbox struct{ stream *grpcStream }

// Message is one message. It keeps the bytes.
func (i *Inbox) Message(after time.Duration, message []byte) {
	i.post(after, letter{message: message})
}

// Close ends the stream with a gRPC status.
func (i *Inbox) Close(after time.Duration, status uint32) {
	i.post(after, letter{ends: true, status: status})
}

func (i *Inbox) post(after time.Duration, l letter) {
	l.stream = i.stream
	l.due = i.stream.thread.host.elapsed() + int64(after)
	i.stream.thread.mail.post(l)
}

// Deliver tells the filter of all that is due on the stream's thread. It waits
// for the thread, so a call from the filter must not use it.
func (i *Inbox) Deliver() { i.stream.thread.deliver() }

func (t *thread) deliver() {
	t.Lock()
	defer t.Unlock()
	t.deliverDue()
}

func (t *thread) deliverDue() {
	now := t.host.elapsed()
	for {
		l, ok := t.mail.take(now)
		if !ok {
			return
		}
		l.stream.hear(l)
	}
}
