package decide

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/hosttest"
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// purse is a source with units of its own. Another worker takes loses of them between
// Check and Take, and the next asks Checks have to ask for them first.
type purse struct {
	Keys // what deciding does not call

	table       state.Table // rules with one purse share its record
	left, loses uint32
	asks        int
	fails       bool // a call into the proxy does
	heldBack    bool
	rebased     bool // the record is, by each Check
	persisted   int

	keeps  []state.Status // what KeepDenied answers, in turn; then OK
	takes  []state.Status // what Take answers in place of what is so, in turn
	finds  []Found        // what Recheck finds in place of what is so, in turn
	kept   []Keep         // of denied hits
	usages []limit.Usage
	held   uint32

	charged uint32
}

func (p *purse) Check(s *Subject, now int64) Finding {
	s.Record.Rebased = p.rebased
	switch {
	case p.fails:
		return Finding{Found: Failed}
	case p.asks > 0:
		p.asks--
		return Finding{Found: Pending}
	case p.heldBack:
		return Finding{Found: HeldBack, Known: true}
	case s.Units > p.left:
		return Finding{Denied, true, limit.Never}
	}
	return Finding{HasRoom, true, now + 5} // a source may say what it likes: there is nothing to wait for
}

func (p *purse) Recheck(s *Subject, now int64) Finding {
	found := p.Check(s, now)
	if len(p.finds) == 0 {
		return found
	}
	found, p.finds = Finding{p.finds[0], found.Known, now + 1}, p.finds[1:]
	return found
}

func (p *purse) KeepDenied(_ *Subject, keep Keep) (passNs int64, status state.Status) {
	if len(p.keeps) > 0 {
		status, p.keeps = p.keeps[0], p.keeps[1:]
		return 0, status
	}
	p.kept = append(p.kept, keep)
	return 0, state.OK
}

func (p *purse) Take(s *Subject) (taken state.Status) {
	if len(p.takes) > 0 {
		taken, p.takes = p.takes[0], p.takes[1:]
		return taken
	}
	if p.loses > 0 {
		p.left, p.loses = p.left-p.loses, 0
		return state.Mismatch
	}
	p.left -= s.Cost
	return state.OK
}

func (p *purse) Refund(s *Subject, _ int64) bool {
	p.left += s.Cost
	return true
}

func (p *purse) Persist(*Subject) { p.persisted++ }

func (p *purse) Usage(_ *Subject, window int) *limit.Usage {
	if window < len(p.usages) {
		return &p.usages[window]
	}
	return &limit.Usage{}
}

func (p *purse) Held(*Subject) uint32 { return p.held }

func (p *purse) Settle(_ *hold.Hold, cost uint32, _ int64) hold.Settlement {
	p.charged += cost
	return hold.CostCharged
}

func (p *purse) Renew(*hold.Hold, hold.Clocks) hold.Renewal { return hold.NotDue }

// begin begins a verdict on the rules, and gives them sources.
func begin(t *testing.T, rules string, sources ...*purse) *Verdict {
	p := hosttest.Policy(t, rules)
	v := &Verdict{}
	v.Begin()
	for i, source := range sources {
		r := NewRule(p, &p.Rules[i])
		r.SetSource(source, &source.table)
		v.Add(&r, Reading{Cost: 2})
	}
	return v
}

const two = `{"name":"first","limits":["100/1h"]},{"name":"second","limits":["100/1h"]}`

// A rule decides by whatever source it has: it takes what a request costs, and
// refunds it when another rule denies.
func TestAnySourceOfUnits(t *testing.T) {
	first, second := &purse{left: 5}, &purse{left: 3}
	v := begin(t, two, first, second)
	v.Decide(1)
	require.True(t, v.Allowed)
	require.Equal(t, []uint32{3, 1}, []uint32{first.left, second.left})

	second.left, second.loses = 2, 2
	v = begin(t, two, first, second)
	v.Decide(1)
	require.Equal(t, "second", v.DeniedBy().Name, "it lost its last units after the check")
	require.Equal(t, limit.Never, v.RetryNs)
	require.Equal(t, []uint32{3, 0}, []uint32{first.left, second.left}, "the first rule's are refunded")

	first.left, second.left = 1, 9
	v = begin(t, two, first, second)
	v.Decide(1)
	require.Equal(t, "first", v.DeniedBy().Name)
	require.Equal(t, []uint32{1, 9}, []uint32{first.left, second.left}, "nothing is taken")
}

// became is what became of a subject: its fate, or else what was found.
func became(s *Subject) any {
	if s.fate != asFound {
		return s.fate
	}
	return s.finding.Found
}

// Two rules with a purse each, or with one purse, and what one request of cost 2 leaves in them.
func TestTwoRules(t *testing.T) {
	shadow := func(rules string) string { return strings.Replace(rules, `"second"`, `"second","mode":"shadow"`, 1) }
	shared := func(p *purse) [2]*purse { return [2]*purse{p, p} }
	for name, tc := range map[string]struct {
		rules   string
		purses  [2]*purse
		allowed bool
		want    [2]any
		left    [2]uint32
	}{
		"both have room": {two, [2]*purse{{left: 2}, {left: 2}}, true, [2]any{taken, taken}, [2]uint32{0, 0}},
		"the first denies": {
			two, [2]*purse{{left: 1}, {left: 2}}, false, [2]any{Denied, HasRoom}, [2]uint32{1, 2},
		},
		"the second denies": {
			two, [2]*purse{{left: 2}, {left: 1}}, false, [2]any{HasRoom, Denied}, [2]uint32{2, 1},
		},
		"the second loses a race and has room": {
			two, [2]*purse{{left: 2}, {left: 4, loses: 1}}, true, [2]any{taken, taken}, [2]uint32{0, 1},
		},
		"the second loses a race and denies": {
			two, [2]*purse{{left: 2}, {left: 2, loses: 1}}, false, [2]any{HasRoom, Denied}, [2]uint32{2, 1},
		},
		"one purse for both": {two, shared(&purse{left: 4}), true, [2]any{taken, taken}, [2]uint32{0, 0}},
		"one purse with units for one": {
			two, shared(&purse{left: 3}), false, [2]any{HasRoom, Denied}, [2]uint32{3, 3},
		},
		"a shadow rule counts last": {
			shadow(two), [2]*purse{{left: 2}, {left: 2}}, true, [2]any{taken, taken}, [2]uint32{0, 0},
		},
		"a shadow rule would deny": {
			shadow(two), [2]*purse{{left: 2}, {left: 1}}, true, [2]any{taken, Denied}, [2]uint32{0, 1},
		},
		"a shadow rule has too few units left of one purse": {
			shadow(two), shared(&purse{left: 3}), true, [2]any{taken, Denied}, [2]uint32{1, 1},
		},
		"a shadow rule of a denied request": {
			shadow(two), [2]*purse{{left: 1}, {left: 2}}, false, [2]any{Denied, notAsked}, [2]uint32{1, 2},
		},
		"a shadow rule that is held, of a request that loses a race": {
			shadow(two), [2]*purse{{left: 2, loses: 1}, {heldBack: true}}, false,
			[2]any{Denied, notAsked}, [2]uint32{1, 0},
		},
		"a shadow rule's units are gone, and it would have to ask": {
			shadow(two), [2]*purse{{left: 2}, {left: 4, loses: 1, finds: []Found{Pending}}}, true,
			[2]any{taken, overtaken}, [2]uint32{0, 3},
		},
		"the second must ask": {
			two, [2]*purse{{left: 2}, {left: 2, asks: 1}}, true, [2]any{HasRoom, Pending}, [2]uint32{2, 2},
		},
	} {
		v := begin(t, tc.rules, tc.purses[:]...)
		v.Decide(1)
		require.Equal(t, tc.allowed, v.Allowed, name)
		for i, s := range v.Subjects {
			require.Equal(t, tc.want[i], became(s), name)
			require.Equal(t, tc.left[i], tc.purses[i].left, name)
		}
		require.Equal(t, tc.want[1] == Pending, v.Pending, name)
	}
}

// lost are what Take answers if it loses so many races.
func lost(races int) []state.Status { return slices.Repeat([]state.Status{state.Mismatch}, races) }

// The second of two rules has room, and then cannot take its units: by what its policy says of that, the first rule's
// are taken or refunded.
func TestARuleThatCannotTakeItsUnits(t *testing.T) {
	for name, tc := range map[string]struct {
		takes   []state.Status
		policy  string
		want    any
		allowed bool
		retryNs int64
		retries uint64
	}{
		"its page is full":       {[]state.Status{state.Full}, `"on_full":"allow"`, Full, true, 0, 0},
		"its page is full: deny": {[]state.Status{state.Full}, `"on_full":"deny"`, Full, false, 0, 0},
		"its store fails":        {[]state.Status{state.Failed}, `"on_error":"allow"`, Failed, true, 0, 0},
		"its store fails: deny":  {[]state.Status{state.Failed}, `"on_error":"deny"`, Failed, false, failureRetryNs, 0},
		"it may lose so many races": {
			lost(state.MaxRetries), `"on_contention":"deny"`, taken, true, 0, state.MaxRetries,
		},
		"it loses one race more": {
			lost(state.MaxRetries + 1), `"on_contention":"allow"`, Contended, true, 0, state.MaxRetries,
		},
		"it loses one race more: deny": {
			lost(state.MaxRetries + 1), `"on_contention":"deny"`, Contended, false, failureRetryNs, state.MaxRetries,
		},
	} {
		first, second := &purse{left: 2}, &purse{left: 2, takes: tc.takes}
		v := begin(t, strings.Replace(two, `"second"`, `"second",`+tc.policy, 1), first, second)
		v.Decide(1)
		require.Equal(t, tc.allowed, v.Allowed, name)
		require.Equal(t, tc.retryNs, v.RetryNs, name)
		of := v.Subjects[1]
		require.Equal(t, tc.want, became(of), name)
		require.Equal(t, tc.retries, of.Rule.Metrics.CASRetries, name)
		require.Equal(t, tc.allowed, first.left == 0, name)
		require.Equal(t, tc.want == taken, second.left == 0, name)
	}
}

// A page that is found full after the check tells no wait, though the subject's memory has one of the request before.
func TestAPageThatIsFoundFullTellsNoWait(t *testing.T) {
	p := &purse{}
	v := begin(t, `{"name":"r","limits":["100/1h"],"on_full":"deny"}`, p)
	v.Decide(1)
	require.Equal(t, limit.Never, v.RetryNs)

	r := v.Subjects[0].Rule
	v.Begin()
	v.Add(r, Reading{Cost: 2})
	p.left, p.takes = 2, []state.Status{state.Full}
	v.Decide(2)
	require.Equal(t, "on_full", v.Denying.Reason())
	require.Zero(t, v.RetryNs)
}

// A request that waits keeps its subjects and counts nothing; it goes on with them.
func TestAVerdictThatWaitsGoesOn(t *testing.T) {
	first, second := &purse{left: 5}, &purse{left: 3, asks: 1}
	v := begin(t, two, first, second)
	v.Decide(1)
	require.True(t, v.Pending)
	require.Equal(t, []any{HasRoom, Pending}, []any{became(v.Subjects[0]), became(v.Subjects[1])})
	require.Equal(t, []uint32{5, 3}, []uint32{first.left, second.left})
	v.Decide(2)
	require.False(t, v.Pending)
	require.True(t, v.Allowed)
	require.Equal(t, []uint32{3, 1}, []uint32{first.left, second.left})

	second.asks = 1
	v = begin(t, two, first, second)
	v.Decide(3)
	first.left = 0
	v.Decide(4)
	require.Equal(t, "first", v.DeniedBy().Name, "another request has taken the units meanwhile")
	require.EqualValues(t, 1, second.left)
}

// Nothing is written for the shadow rules of a denied request. If it has waited, they were read in
// an earlier callback, whose memory others have used since.
func TestNothingIsWrittenForAShadowRuleOfADeniedRequest(t *testing.T) {
	first, second := &purse{left: 5, asks: 1}, &purse{heldBack: true}
	v := begin(t, strings.Replace(two, `"second"`, `"second","mode":"shadow"`, 1), first, second)
	v.Decide(1)
	require.True(t, v.Pending)
	first.left = 0
	v.Decide(2)
	require.Equal(t, "first", v.DeniedBy().Name)
	require.Equal(t, "not_asked", v.Subjects[1].Reason())
	require.False(t, v.Subjects[1].finding.Known, "its record is no longer in memory")
	require.Zero(t, second.persisted)
}

// A record that has moved to the present counts when that is stored. Else the next request finds the same. Nothing is
// stored for the shadow rule of a denied request, nor where other workers are faster each time, nor for an allowed
// request that is not counted.
func TestARebasedRecordThatIsNotStoredCountsNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		first, second purse
		cost          uint32
		rebased       uint64
	}{
		"it is taken":       {purse{left: 2}, purse{left: 2, rebased: true}, 2, 1},
		"it is denied":      {purse{left: 2}, purse{rebased: true}, 2, 1},
		"it is skipped":     {purse{left: 2, loses: 1}, purse{left: 2, rebased: true}, 2, 0},
		"its store fails":   {purse{left: 2}, purse{fails: true, rebased: true}, 2, 0},
		"others are faster": {purse{left: 2}, purse{left: 2, rebased: true, takes: lost(state.MaxRetries + 1)}, 2, 0},
		"it costs nothing":  {purse{left: 2}, purse{left: 2, rebased: true}, 0, 0},
		"its page is full": {
			purse{left: 2}, purse{left: 2, rebased: true, takes: []state.Status{state.Full}}, 2, 0,
		},
	} {
		v := begin(t, strings.Replace(two, `"second"`, `"second","mode":"shadow"`, 1), &tc.first, &tc.second)
		v.Subjects[1].Cost = tc.cost
		v.Decide(1)
		require.Equal(t, tc.rebased, v.Subjects[1].Rule.Metrics.ClockRebased, name)
	}
}

// An enforced rule stores that its record has moved to the present, also of a request that another rule denies. It
// counts once, also if its units are refunded.
func TestARebasedRecordOfAnEnforcedRuleCountsOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		first, second purse
		cost          uint32
		rebased       uint64
	}{
		"both take":                          {purse{left: 2, rebased: true}, purse{left: 2}, 2, 1},
		"the other denies":                   {purse{left: 2, rebased: true}, purse{}, 2, 1},
		"the other denies, and it is for 0":  {purse{left: 2, rebased: true}, purse{}, 0, 1},
		"the other loses its units":          {purse{left: 2, rebased: true}, purse{left: 2, loses: 1}, 2, 1},
		"both allow, and it is for 0":        {purse{left: 2, rebased: true}, purse{left: 2}, 0, 0},
		"the other asks, and nobody answers": {purse{left: 2, rebased: true}, purse{left: 2, asks: 1}, 2, 0},
	} {
		v := begin(t, two, &tc.first, &tc.second)
		v.Subjects[0].Cost = tc.cost
		v.Decide(1)
		require.Equal(t, tc.rebased, v.Subjects[0].Rule.Metrics.ClockRebased, name)
	}
}

// A peek judges each rule by itself: what the request before counted in the record of a shared
// counter is no part of it, whether that request passed or was denied before its shadow rule.
func TestAPeekForgetsWhatTheRequestBeforeCounted(t *testing.T) {
	for mode, loses := range map[string]uint32{"enforce": 0, "shadow": 9} {
		shared := &purse{left: 9, loses: loses}
		v := begin(t, strings.Replace(two, `"second"`, `"second","mode":"`+mode+`"`, 1), shared, shared)
		v.Decide(1)
		require.Equal(t, loses == 0, v.Allowed, mode)
		rules := []*Rule{v.Subjects[0].Rule, v.Subjects[1].Rule}

		shared.left = 3
		v.Begin()
		for _, r := range rules {
			v.Add(r, Reading{Cost: 2})
		}
		v.CheckEach(2)
		require.Equal(t, HasRoom, v.Subjects[1].finding.Found, mode)
	}
}

// Rules whose sources count in no table share no record, though their keys have the same bytes.
func TestRulesWithoutATableShareNoRecord(t *testing.T) {
	v := begin(t, two, &purse{left: 2}, &purse{left: 2})
	for _, s := range v.Subjects {
		s.Rule.Counted = nil
	}
	v.Decide(1)
	require.True(t, v.Allowed)
}

// What on_error decides counts once for a request, also if it has waited in between, and a peek counts nothing.
func TestAFailureCountsOnceForARequest(t *testing.T) {
	first, second := &purse{fails: true}, &purse{left: 2, asks: 1}
	v := begin(t, two, first, second)
	m := &v.Subjects[0].Rule.Metrics
	v.CheckEach(1)
	require.Equal(t, "on_error", v.Subjects[0].Reason())
	require.Zero(t, m.Errors)
	second.asks = 1
	v.Decide(1)
	require.True(t, v.Pending)
	v.Decide(2)
	require.True(t, v.Allowed)
	require.EqualValues(t, 1, m.Errors)
}
