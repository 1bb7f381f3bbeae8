package host

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/filter/internal/usage"
)

// stream is an allowed request whose response gets fields, or that holds units until its
// answer is known. A denial's fields go with its reply.
type stream struct {
	plugin *plugin
	fields []respond.Field
	holds  []hold.Hold
	scan   *usage.Scanner // nil if nothing of the answer is read

	status uint16 // of the answer whose headers have come, 0 if none have

	context uint32
	next    *stream // in the same bucket
}

// maxIdleStreams is how many ended streams are kept to be re-used.
const maxIdleStreams = 1024

// await keeps the fields for the stream's response, and the holds for its end.
func (p *plugin) await(context uint32) {
	s := &stream{plugin: p}
	if n := len(p.idle); n > 0 {
		s = p.idle[n-1]
		p.idle = p.idle[:n-1]
	}
	s.fields, p.fields = p.fields, s.fields
	s.holds, p.holds = p.holds, s.holds
	s.context, s.status = context, 0
	streams.add(s)
}

// forget undoes await.
func (s *stream) forget() {
	streams.remove(s)
	clear(s.holds)
	s.holds = s.holds[:0]
	if len(s.plugin.idle) < maxIdleStreams {
		s.plugin.idle = append(s.plugin.idle, s)
	}
}

// streams are those that wait for their response or its end.
var streams = table{buckets: make([]*stream, 1024)}

// table finds streams by their contexts.
type table struct {
	buckets []*stream
	count   int
}

// at scatters contexts, which are numbered, so that each portion of the buckets has as many.
func (t *table) at(context uint32) **stream {
	const golden = 0x9e3779b1 // odd: no two numbers in a row as long as the table meet
	return &t.buckets[context*golden%uint32(len(t.buckets))]
}

// of returns the stream of a context, nil if none waits.
func (t *table) of(context uint32) *stream {
	s := *t.at(context)
	for s != nil && s.context != context {
		s = s.next
	}
	return s
}

func (t *table) add(s *stream) {
	if t.count++; t.count > 2*len(t.buckets) {
		old := t.buckets
		t.buckets = make([]*stream, 4*len(old))
		for _, s := range old {
			for s != nil {
				next := s.next
				t.push(s)
				s = next
			}
		}
	}
	t.push(s)
}

func (t *table) push(s *stream) {
	at := t.at(s.context)
	s.next, *at = *at, s
}

func (t *table) remove(s *stream) {
	at := t.at(s.context)
	for *at != s {
		at = &(*at).next
	}
	*at, s.next = s.next, nil
	t.count--
}
