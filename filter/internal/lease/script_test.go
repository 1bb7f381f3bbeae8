package lease_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// script is what happens to a worker and its service, and behind -> what must be so then.
//
//	a  a:6  #      a request of user a; with a header v; of a user that nobody was before
//	a!             a request, and all answers that there are
//	go  serve      the service answers all there is; it answers one message
//	+50ms  tick    time passes; a tick
//	renew          a tick that renews what requests hold
//	end:1  end:2=5 the first request is answered; the second one is, and costs 5
//	leave:1        the client of the first request leaves
//	max:1=80s      the first request holds nothing any more after that
//	heir           a later configuration takes over
//	report         what has changed is reported
//	cut  down  up  the stream ends; none can be opened from then on; one can
//	forget         the store loses its state, and the service sees it
//	silent  old    the worker takes the service for silent; the service knows no reports
//	proxies:2      so many there are
//	20*a  5*+1s,go twenty requests; five seconds with what there is to answer in each
type script struct{ name, rules, steps string }

func (c *script) run(t *testing.T) {
	w, s := holdingPair(t, c.rules)
	for line := range strings.Lines(strings.TrimSpace(c.steps)) {
		steps, want, _ := strings.Cut(strings.TrimSpace(line), "->")
		messages, asked := 0, s.asked
		for _, word := range strings.Fields(steps) {
			times, all := 1, word
			if before, after, several := strings.Cut(word, "*"); several {
				times, all = number(t, before), after
			}
			for range times {
				for _, step := range strings.Split(all, ",") {
					if step == "serve" {
						messages += w.serve(s, 1)
					} else {
						w.step(s, step)
					}
				}
			}
		}
		for _, word := range strings.Fields(want) {
			parts := comparison.FindStringSubmatch(word)
			require.NotNil(t, parts, word)
			got, bound := w.count(s, parts[1], messages, s.asked-asked), number(t, parts[3])
			switch parts[2] {
			case "=":
				require.Equal(t, bound, got, "%s: %s", line, word)
			case "<=":
				require.LessOrEqual(t, got, bound, "%s: %s", line, word)
			case ">=":
				require.GreaterOrEqual(t, got, bound, "%s: %s", line, word)
			}
		}
	}
}

var comparison = regexp.MustCompile(`^(\w+)(=|<=|>=)(\d+)$`)

func number(t *testing.T, text string) int {
	n, err := strconv.Atoi(text)
	require.NoError(t, err)
	return n
}

func (h *holding) step(s *service, step string) {
	name, value, _ := strings.Cut(step, ":")
	value, more, _ := strings.Cut(value, "=")
	request := func() uint32 { return uint32(number(h.t, value)) }
	switch name {
	case "go":
		h.exchange(s)
	case "tick":
		h.tick()
	case "renew":
		h.renew()
	case "end":
		h.answer(request(), uint32(number(h.t, "0"+more)))
	case "leave":
		h.client.Forget(request())
	case "max":
		h.holds[request()][0].EndNs = h.proxy.Clock + duration(h.t, more)
	case "heir":
		h.bequeath()
	case "report":
		h.client.Flush(h.proxy.Clock)
	case "cut", "down":
		h.down, h.stream = name == "down", nil
		h.client.Closed(h.proxy.Clock)
	case "up":
		h.down = false
	case "forget":
		s.Forget()
		h.proxy.Clock += int64(500 * time.Millisecond) // of which the service looks
		s.Due()
		if st := h.stream; st != nil && st.service.Ending() {
			h.stream = nil
			h.client.Closed(h.proxy.Clock)
		}
	case "silent":
		h.engine.Leases.Silent, h.down = true, true
	case "old":
		s.old = true
	case "proxies":
		h.engine.Leases.SetProxies(request())
	default:
		if step[0] == '+' {
			h.proxy.Clock += duration(h.t, step[1:])
			return
		}
		user, answered := strings.CutSuffix(step, "!")
		if user == "#" {
			user = strconv.Itoa(int(h.next))
		}
		h.request(strings.Replace(user, ":", " ", 1))
		if answered {
			h.exchange(s)
		}
	}
}

// renew renews what requests hold, as the worker's tick does.
func (h *holding) renew() {
	for _, holds := range h.holds {
		for i := range holds {
			holds[i].Renew(h.proxy.Clock, h.proxy.Clock, h.engine.HeldNow())
		}
	}
	h.tick()
}

// bequeath ends the worker's configuration, and goes on as a later one.
func (h *holding) bequeath() {
	h.end()
	heir := newHolding(h.t, h.proxy, h.rules, h.seed+1)
	heir.client.Inherit(h.client)
	heir.client.Flush(h.proxy.Clock)
	*h = *heir
}

func duration(t *testing.T, text string) int64 {
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return int64(d)
}

func (h *holding) count(s *service, name string, messages, asked int) int {
	isTrue := map[bool]int{true: 1}
	switch name {
	case "admitted":
		return h.admitted()
	case "decided":
		return len(h.verdicts)
	case "waits": // whether somebody does
		return isTrue[h.client.Waiting()]
	case "silent": // whether the service is taken for that
		return isTrue[h.engine.Leases.Silent]
	case "opened": // streams
		return h.opened
	case "sent": // messages that the service has not got
		return len(h.stream.Asks)
	case "messages": // that the line served
		return messages
	case "asked": // of the service, by the line
		return asked
	case "held": // as the service knows, as it does what is used, and what is held of the first key
		return int(s.held())
	case "first":
		return int(s.inspect(s.first)[0].Used)
	case "used":
		return int(s.used())
	case "starting": // how many were decided for that reason
		return h.starting
	case "leased": // of user a
		return h.leased(h.t, "a")
	}
	require.Fail(h.t, "nothing is called "+name)
	return 0
}
