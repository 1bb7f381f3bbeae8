package simulate

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/result"
)

// settledState is the property in which the filter says what it charged for an answer.
const settledState = "sluice.settled"

// longestLingerNs is how long a proxy may have something to do after its last answer.
const longestLingerNs = int64(time.Minute + 2*time.Second)

// holding is a request that no line answers: its client leaves when its hold is over, or the
// upstream answers then.
type holding struct {
	x       *sim.Exchange
	untilNs int64
	answer  *sim.Response // nil: the client leaves
}

// end ends the request.
func (h *holding) end() error {
	if h.answer == nil {
		return h.x.Reset(sim.ClientGone)
	}
	_, err := h.x.Answer(h.answer, true)
	return err
}

// holdOn keeps a request, in the order of their ends.
func (s *simulation) holdOn(h holding) {
	i := sort.Search(len(s.holding), func(i int) bool { return s.holding[i].untilNs > h.untilNs })
	s.holding = slices.Insert(s.holding, i, h)
}

// keep keeps a request until its lines of answer have come or, where none do, for as long as
// rules hold units for it. It reports whether there is an answer to wait for.
func (s *simulation) keep(l *line, x *sim.Exchange) (bool, error) {
	ended := x.Ended()
	if l.answered {
		if s.open == nil {
			s.open = map[string]*sim.Exchange{}
		}
		s.open[*l.ID] = x
	} else {
		hold := int64(0)
		if !ended && l.Op == "" {
			hold = s.hold(x.State()[reportState])
		}
		if hold == 0 {
			return false, nil
		}
		s.holdOn(holding{x: x, untilNs: s.now + hold})
	}
	if len(s.open)+len(s.holding) > maxOpen {
		return false, fmt.Errorf("more than %d requests wait for their answers", maxOpen)
	}
	return !ended, nil
}

// hold is how long the rules of a verdict hold units without a sign of life.
func (s *simulation) hold(report string) (ns int64) {
	var a result.Result
	if json.Unmarshal([]byte(report), &a) != nil {
		return 0 // verdict says so
	}
	for _, matched := range a.Rules {
		for i := range s.policy.Rules {
			if r := &s.policy.Rules[i]; r.Name == matched.Rule {
				ns = max(ns, r.HoldNs)
			}
		}
	}
	return ns
}

// release ends the requests that have held for long enough.
func (s *simulation) release() {
	for len(s.holding) > 0 && s.holding[0].untilNs <= s.now {
		_ = s.holding[0].end() // what has ended stays as it is
		s.holding = s.holding[1:]
		s.activeUntil = max(s.activeUntil, s.now+longestLingerNs)
	}
}

// part takes a line's part of an answer through the proxy.
func (s *simulation) part(l *line, o *output) error {
	id := *l.Answer
	x := s.open[id]
	if !x.Ended() { // the request was not denied
		if err := s.pour(l, x, o); err != nil {
			return fmt.Errorf("answer to %q: %w", id, err)
		}
	}
	if l.lastPart() {
		delete(s.open, id)
		s.activeUntil = max(s.activeUntil, s.now+longestLingerNs)
	}
	if !x.Ended() {
		return nil
	}
	settled := x.State()[settledState]
	if settled != "" && !json.Valid([]byte(settled)) {
		return errors.New("the filter does not say how it settled the answer: " + settled)
	}
	if settled != "[]" { // what lingers after its client has left is not settled yet
		o.settled = settled
	}
	return nil
}

// pour does what the line says of the answer, in the order of an answer.
func (s *simulation) pour(l *line, x *sim.Exchange, o *output) error {
	if l.Status != nil {
		end := l.End != nil && l.Chunk == nil && l.Trailers == nil
		response, err := x.Answer(&sim.Response{Status: int(*l.Status), Headers: sorted(l.Headers)}, end)
		if err != nil {
			return err
		}
		o.headers = response.Headers
	}
	if l.Chunk != nil {
		if err := x.Chunk([]byte(*l.Chunk), l.End != nil && l.Trailers == nil); err != nil {
			return err
		}
	}
	switch {
	case l.Trailers != nil:
		return x.Trailers(sorted(l.Trailers))
	case l.Reset != nil && *l.Reset == resetClient:
		return x.Reset(sim.ClientGone)
	case l.Reset != nil:
		return x.Reset(sim.UpstreamReset)
	case l.End != nil && !x.Ended():
		return x.Chunk(nil, true)
	}
	return nil
}
