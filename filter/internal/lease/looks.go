package lease

import (
	"github.com/sluice-ratelimit/sluice/filter/internal/decide"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// A client that asks for its own usage has a look at its keys, which is a Waiter without a verdict. The
// service is asked how they stand, and grants nothing:
//
//	Look.Add          a key of each rule of scope cluster that the client is shown
//	Client.WaitLook   asks with up to quota.MaxGroup keys each are queued; those of other looks at the same
//	                  keys are joined
//	Client.Flush      sends them in the message with all other asks, behind these
//	Client.Receive    writes the standings into the look, which is ready once all its asks are over
//	Look.Tell         hands them to the subject of the same key, for Keys.Look
//
// A part of a look is marked Inspect on the wire (quota.Part), as that of a probe is; isLook reads that.
//
// A key stays unknown if the service is silent, if its store fails for the key, or if too many keys are
// looked at already.

// maxLooked is how many keys may be looked at at once. One look alone may have more.
const maxLooked = 4096

// Look is what a client is told of its keys at the service: one of each rule, at most.
type Look struct{ keys []lookedKey }

// lookedKey is one key, and how it stands.
type lookedKey struct {
	part
	rule      *decide.Rule
	standings []state.LeaseStanding // nil: not known
}

// Add adds the subject's key, unless its rule has scope proxy.
func (l *Look) Add(s *decide.Subject) {
	src, ok := s.Rule.Source.(clusterSource)
	if !ok || s.Unlimited {
		return
	}
	l.keys = append(l.keys, lookedKey{part: src.lookPart(s), rule: s.Rule})
}

// IsEmpty reports whether the service has nothing to tell.
func (l *Look) IsEmpty() bool { return l.size() == 0 }

// size is how many keys the look has; nil has none.
func (l *Look) size() int {
	if l == nil {
		return 0
	}
	return len(l.keys)
}

// Tell gives the subject what the service has said of its key. It tells nothing of a subject that Add
// has not had.
func (l *Look) Tell(s *decide.Subject) {
	if l == nil {
		return
	}
	for i := range l.keys {
		if k := &l.keys[i]; k.rule == s.Rule {
			s.Quota.Grant.Received, s.Quota.Grant.Standings = k.standings != nil, k.standings
			return
		}
	}
}

// lookPart is what is asked for a look at the subject's key.
func (src *clusterRule) lookPart(s *decide.Subject) part {
	d := src.definition(s)
	return part{definition: d, Wire: quota.Part{
		Definition: d.ID, Key: src.quotaKey(s), Inspect: true,
	}}
}

// Look takes what the service has told the subject.
func (src *clusterRule) Look(s *decide.Subject, wallNs int64) {
	src.begin(s, wallNs)
	if g := &s.Quota.Grant; g.Received {
		src.noteStandings(s, g.Standings)
	}
}

// WaitLook makes a request wait for what the service says of the look's keys. It returns false if
// nobody is asked, because the service is silent, or too many requests or keys wait.
func (c *Client) WaitLook(context uint32, l *Look, now int64) bool {
	looked := c.waitlist.lookedKeys
	tooMany := looked > 0 && looked+len(l.keys) > maxLooked
	if c.worker.silent || c.worker.crowded || tooMany {
		return false
	}
	req := &Waiter{Context: context, Look: l, deadlineNs: now + c.worker.timeoutNs}
	c.addWaiter(req)
	for from := 0; from < len(l.keys); from += quota.MaxGroup {
		parts := make([]part, min(quota.MaxGroup, len(l.keys)-from))
		for i := range parts {
			parts[i] = l.keys[from+i].part
		}
		a, _ := c.queuedAsk(parts)
		req.waitFor(a)
	}
	return true
}

// isLook reports whether the ask is for looks: it asks for no units.
func (a *ask) isLook() bool { return a.parts[0].Wire.Inspect }

// endLooks takes the result of an ask for looks.
func (c *Client) endLooks(a *ask, result *quota.AskResult, now int64) {
	standings := make([][]state.LeaseStanding, len(a.parts))
	for i := range a.parts {
		if g := newGrant(a, i, result, now); !g.Failed {
			standings[i] = g.standings
		}
	}
	for _, req := range a.waiters {
		keys := req.Look.keysOf(a)
		for i := range standings {
			keys[i].standings = standings[i]
		}
		req.asks = without(req.asks, a)
		if !req.isAsking() {
			c.waitlist.makeReady(req)
		}
	}
}

// keysOf returns the look's keys from that of the ask's first part on: the others stand in the order of the
// ask's other parts.
func (l *Look) keysOf(a *ask) []lookedKey {
	from := 0
	for l.keys[from].Wire.Definition != a.parts[0].Wire.Definition { // a look has one key of each definition
		from++
	}
	return l.keys[from:]
}
