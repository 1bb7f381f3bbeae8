package lease_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLevelsAreBounded: a client that invents keys while the service is silent takes no more
// memory, and when it is back, requests do not wait for all of them to be stated.
func TestLevelsAreBounded(t *testing.T) {
	w, s := holdingPair(t, `{"name":"r","scope":"cluster","key":[{"header":"u"}],"algorithm":"concurrency","limits":["4"],"capacity":200000,"hold":"80s","on_unavailable":"local"}`)
	w.engine.Leases.Silent, w.down = true, true
	for n := range 1<<16 + 100 {
		w.request(strconv.Itoa(n))
	}
	require.Equal(t, 1<<16+100, w.admitted())
	w.down = false
	state := func() (messages int) { // as fast as a service takes asks of one stream
		for ; w.serve(s, 1) > 0; messages++ {
			w.proxy.Clock += 6 * ms
		}
		return messages
	}
	w.proxy.Clock += second
	w.tick()
	state()
	w.proxy.Clock += second
	w.tick()
	id := w.request("0")
	w.serve(s, 2)
	require.Contains(t, w.verdicts, id)
	state()
	require.LessOrEqual(t, s.asked, 1<<16+2)
	require.GreaterOrEqual(t, s.asked, 1<<16)

	// All are renewed at once in as many round trips as fit a store's quiet time by far.
	w.proxy.Clock += 10 * second
	w.tick()
	asked := s.asked
	require.LessOrEqual(t, state(), 130)
	require.Equal(t, 1<<16, s.asked-asked)
}

// TestMessagesAreShort: however many levels are stated at once.
func TestMessagesAreShort(t *testing.T) {
	var rules []string
	for n := range 16 {
		rules = append(rules, fmt.Sprintf(`{"name":"r%d","scope":"cluster","key":[{"header":"u"}],"algorithm":"concurrency","limits":["4"]}`, n))
	}
	w, s := holdingPair(t, strings.Join(rules, ","))
	for n := range 300 {
		w.request(strconv.Itoa(n)) // Send looks at the length
	}
	w.exchange(s)
	require.Equal(t, 300, w.admitted())
}

// TestUnitsOfRequestsThatHaveNotGoneOn: a worker states them as held. Of many requests it lets some
// go on in a callback, and the others in the next.
func TestUnitsOfRequestsThatHaveNotGoneOn(t *testing.T) {
	w, s := holdingPair(t, strings.Replace(slotRule, `"3"`, `"100"`, 1))
	for range 100 {
		w.request("a")
	}
	w.exchange(s)
	require.Len(t, w.holds, 65)
	w.answer(1, 0)
	s.serve(w.stream)
	require.EqualValues(t, 99, s.held())
	w.deliver()
	require.Len(t, w.holds, 99)
}

// TestManyRequestsKeepNoSlot: however many wait to ask, what has ended is stated with the next
// message.
func TestManyRequestsKeepNoSlot(t *testing.T) {
	w, s := holdingPair(t, slotRule)
	w.request("ends")
	w.exchange(s)
	for n := range 600 {
		w.request(strconv.Itoa(n))
	}
	w.answer(1, 0)
	require.EqualValues(t, 1, s.held())
	w.serve(s, 2)
	require.Zero(t, s.inspect(s.first)[0].Used, "the slot is free")
}

// TestALateAnswerIsCharged: what costs more than max_hold has charged, also once the level of its
// key was forgotten and another request has made a new one.
func TestALateAnswerIsCharged(t *testing.T) {
	w, s := holdingPair(t, strings.Replace(loginRule, `3/1m`, `9/1d`, 1))
	w.request("a")
	w.exchange(s)
	w.holds[1][0].EndNs = w.proxy.Clock
	for range 100 {
		w.proxy.Clock += second
		w.renew()
		w.exchange(s)
	}
	w.request("a")
	w.exchange(s)
	w.answer(1, 5)
	w.exchange(s)
	require.EqualValues(t, 5, s.used())
}
