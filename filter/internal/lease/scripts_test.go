package lease_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

// script is what happens to a worker and its service, and behind -> what must be so then: see holding.count for the
// words. For example, "2*a! -> admitted=3 asked=2 decided=5" says that user a sends two requests, each with all
// answers that there are. Of all requests so far 5 are decided, of which 3 passed. The line's requests were asked for
// in 2 asks.
//
//	a  a:6  #      a request of user a; with a header v; of a user that nobody was before
//	a!             a request, and all answers that there are
//	look:a         user a asks for its own usage
//	go  serve      the service answers all there is; it answers one message
//	busy           it takes none of the asks of one message
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
	case "look":
		h.look(value)
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
		h.client.StreamEnded(h.proxy.Clock)
	case "up":
		h.down = false
	case "forget":
		h.forget(s)
	case "silent":
		h.engine.Cluster.Service.Silent = true
		h.down = true
	case "old":
		s.refusal = quota.Unknown
	case "busy":
		s.refusal = quota.Busy
		h.serve(s, 1)
		s.refusal = 0
	case "proxies":
		h.engine.Cluster.SetProxies(request())
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

// forget has the store lose its state, and the service see it.
func (h *holding) forget(s *service) {
	s.Forget()
	h.proxy.Clock += int64(500 * time.Millisecond) // after which the service looks
	s.Due()
	if st := h.stream; st != nil && st.service.Ending() {
		h.stream = nil
		h.client.StreamEnded(h.proxy.Clock)
	}
}

// renew renews what requests hold, as the worker's tick does.
func (h *holding) renew() {
	for _, holds := range h.holds {
		for i := range holds {
			holds[i].Renew(hold.Clocks{Now: h.proxy.Clock, MonotonicNs: h.proxy.Clock, HeldNs: h.engine.HeldNow()})
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
	case "admitted": // requests, from the beginning
		return h.admitted()
	case "decided": // the same, with those that were denied
		return len(h.verdicts)
	case "waits": // whether somebody does
		return isTrue[h.client.HasWaiters()]
	case "silent": // whether the service is taken for that
		return isTrue[h.engine.Cluster.Service.Silent]
	case "opened": // streams
		return h.opened
	case "sent": // messages that the service has not got
		return len(h.stream.Asks)
	case "messages": // that the line served
		return messages
	case "asked": // of the service, by the line
		return asked
	case "held": // units of all keys, as the service knows
		return int(s.held())
	case "used": // units that it has counted of all keys, in their first windows
		return int(s.used())
	case "first": // units that it has counted of the key that it was asked for first: in the first window
		return int(s.inspect(s.first)[0].Used)
	case "starting": // how many were decided for that reason
		return h.starting
	case "leased": // of user a
		return h.leased(h.t, "a")
	case "looked": // how many users were told their usage
		return len(h.looked)
	case "known", "shown": // by the last of them: the rules whose usage it has; what is used of these together
		return h.lookedAt()[name]
	}
	require.Fail(h.t, "nothing is called "+name)
	return 0
}

// lookedAt is what the last user was told of its usage.
func (h *holding) lookedAt() map[string]int {
	told := map[string]int{}
	for _, r := range h.looked[len(h.looked)-1].Rules {
		if r.Windows == nil {
			continue
		}
		told["known"]++
		for _, w := range r.Windows {
			told["shown"] += int(w.Used)
		}
	}
	return told
}

// several writes rules that differ by their number.
func several(n int, rule string) string {
	var rules []string
	for i := range n {
		rules = append(rules, strings.ReplaceAll(rule, "#", fmt.Sprint(i)))
	}
	return strings.Join(rules, ",")
}

const (
	byUser  = `"scope":"cluster","key":[{"header":"u"}]`
	perUser = `{"name":"r",` + byUser + `,"limits":["100/1m"]}`
	noLease = `{"name":"r",` + byUser + `,"limits":["3/1m"],"lease":"off"}`
	shared  = `{"name":"r","scope":"cluster","limits":["100/1m"],"on_unavailable":"deny"}`
	shut    = `{"name":"r",` + byUser + `,"limits":["0/1m"],"cost":{"header":"v","min":0}`
	counter = `{"name":"r#",` + byUser + `,"counter":"c"`
	tried   = `{"name":"tried","mode":"shadow","limits":["1/1m"],"lease":"off",` + byUser + `}`
	slots4  = `"algorithm":"concurrency","limits":["4"]`
)

// leaseScripts are of leased units, of messages and of silence.
var leaseScripts = []script{
	{"a denial is remembered, for a second at most", perUser, `
		103*a! -> admitted=100
		a -> sent=0 decided=104 admitted=100
		+1s a -> sent=1`},
	{"a cost of 0 asks nobody, and passes where all is used",
		`{"name":"r",` + byUser + `,"limits":["1/1m"],"cost":{"header":"v","min":0}}`, `
		a:1! a:0 -> admitted=2 asked=1`},
	{"a limit of 0 denies a cost of 0", shut + "}", `a:0 -> decided=1 admitted=0 asked=0`},
	{"a limit of 0 denies a cost of 0 that would be held", shut + `,"settle":{}}`,
		`a:0 -> decided=1 admitted=0 asked=0`},
	{"without a lease each request asks", noLease, `
		3*a! -> admitted=3 asked=3
		2*a! -> admitted=3 asked=2 decided=5`},
	{"units that come after the end of their window go back, and are asked for again at once",
		strings.Replace(noLease, "3/1m", "1/1m", 1), `
		+59996ms a +1ms serve -> waits=1 sent=1
		+1ms serve -> waits=1 sent=1 used=1
		+2ms serve -> admitted=1 used=1 sent=0`},
	{"a closed stream is asked again", perUser, `a cut +20ms tick go -> admitted=1 opened=2`},
	{"a client that has gone is not resumed, and its unit is the next one's", perUser, `
		a leave:1 -> waits=0
		go -> decided=0
		a -> admitted=1`},
	{"one callback resumes few; who is ready when a tick comes may have to wait again", shared, `
		300*a 2*serve -> decided=65
		15*tick,go,+10ms -> decided=300 admitted=100`},
	{"nobody waits longer than the timeout for an answer that does not come", shared, `
		300*a 2*serve -> decided=65
		15*tick,+10ms -> decided=300 admitted=100`},
	{"a worker that stood still has not heard the service, which may have answered", perUser, `
		a +150ms tick -> decided=1 silent=0
		go a -> admitted=2 silent=0`},
	{"a worker that stands still again and again does not take a silent service for one that answers",
		perUser, `
		a +150ms tick -> decided=1 silent=0
		a +60ms tick +60ms tick -> decided=2
		9*a,+60ms,tick,+60ms,tick -> decided=11 silent=1`},
	{"too many waiters", `{"name":"r","scope":"cluster","limits":["100000/1m"],"on_contention":"deny"}`,
		`1034*a -> decided=10 admitted=0`},
	{"a denied shadow rule keeps no other from its units",
		tried + "," + strings.Replace(noLease, `"3/`, `"100/`, 1), `
		a serve -> admitted=1 sent=0
		a serve -> admitted=2 sent=0
		a serve -> admitted=3 sent=0`},
	{"of two rules of a counter, what is taken back is no silence",
		several(2, counter+`,"limits":["3/1m"],"settle":{},"on_unavailable":"allow"}`), `
		a! -> admitted=1 held=2
		a! -> admitted=1 decided=2 held=2
		2*a! -> admitted=1 decided=4 held=2`},
	{"what was admitted in silence is said anew if the ask is lost that has said it",
		strings.Replace(perUser, `"limits"`, `"on_unavailable":"local","limits"`, 1), `
		silent 10*a -> admitted=10
		up +2s tick go -> silent=0 used=0
		a leave:11 cut +200ms tick a! -> admitted=11 used=11`},
	{"a refill says what was admitted in silence, if no request needs to ask",
		strings.Replace(perUser, `"limits"`, `"cost":{"header":"v"},"on_unavailable":"local","limits"`, 1), `
		4*a! -> admitted=4 leased=8
		silent a:50 -> admitted=5
		up +1s tick go -> silent=0 used=12
		8*a -> admitted=13 asked=0 leased=0
		go -> asked=1 leased=9 used=71`},
	{"units are of the number that they were granted under", saidByV + "}", `
		20*a:1000! -> admitted=20 leased>=1
		3*a:15! -> admitted=20
		3*a:1000! -> admitted=23
		a:x! -> admitted=23
		12*b! -> admitted=33
		7*b:15! -> admitted=38
		2*c:0! -> admitted=38 decided=48`},
	{"while the service is silent all numbers of a key count together, each up to its share",
		strings.Replace(saidByV, `"deny"`, `"local"`, 1) + "}", `
		proxies:2 silent 3*a:6 -> admitted=3
		a:6 a:4 -> admitted=3
		a:8 -> admitted=4
		a:8 -> admitted=4 decided=7`},
}

// holdScripts are of units that are held until answers are known.
var holdScripts = []script{
	{"what changes while a message is under way travels with the next", strings.Replace(slotRule, `"3"`, `"100"`, 1), `
		a a b c go end:1 end:2 end:3 end:4 -> sent=1
		serve -> sent=1
		go -> held=0`},
	{"what has ended is reported with the next message, however many wait to ask", slotRule, `
		a! 600*# end:1 -> held=1
		2*serve -> first=0`},
	{"an ask leaves, though one of its accounts changes in each round trip", everySlot + "," + slotRuleThatDenies, `
		7*#! -> admitted=7 held=14
		end:1 # end:2,serve end:3,serve -> admitted=8
		end:4,serve end:5,serve go -> admitted=8 held=6`},
	{"so does one that costs something, where denied requests prolong a block", prolonged, `
		7*a! -> admitted=7 held=7
		end:1 a end:2,serve end:3,serve -> admitted=8
		end:4,serve end:5,serve go -> admitted=8 held=3`},
	{"what a queued ask was to report is reported without it, once its last request has left",
		everySlot + "," + slotRuleThatDenies, `
		a! b c a end:1 serve -> admitted=2 sent=1
		leave:4 go -> admitted=3 held=4`},
	{"asks of one account leave one after the other",
		several(2, counter+`,"limits":["9/1m"],"settle":{},"match":{"headers":{"v":"#"}}}`) +
			"," + strings.Replace(counter, "#", "all", 1) + `,"limits":["9/1m"],"settle":{}}`, `
		b a:0 a:1 2*serve -> admitted=2 asked=2
		serve -> admitted=3 asked=1 held=5`},
	{"requests that have not gone on are held", strings.Replace(slotRule, `"3"`, `"100"`, 1), `
		100*a go -> admitted=65
		end:1 serve -> held=99 admitted=100`},
	{"messages are short", several(16, `{"name":"r#",`+byUser+`,`+slots4+`}`),
		`300*# go -> admitted=300`},
	{"a share is held without the service, and reported later", localRule, `
		b! end:1 go proxies:2 down 3*a 30*+10ms,tick -> admitted=3 decided=4
		up 3*+1s,tick,go -> held=2
		end:2 end:3 go -> held=0`},
	{"an ask that was queued for long reports what is held by then", localRule, `
		silent a report end:1 15*+1s,tick a up +2s tick go -> held=1`},
	{"a store that has lost its state hears at once what is held, and grants nothing for 4 s", slotRuleThatDenies, `
		a! b! b! -> admitted=3 held=3
		forget +20ms tick go -> held=3
		a! -> admitted=3 decided=4 starting=1
		a a -> admitted=3 decided=6 starting=3 asked=0
		+3s a! +470ms a! -> admitted=3 starting=5
		end:1 go 3*b! -> held=2 admitted=3 starting=8
		+20ms a! a! a! -> admitted=6 starting=8
		a! -> admitted=6 starting=8 held=5`},
	{"while a store starts, a proxy gives its share, and reports it", localRule, `
		forget 5*a! -> admitted=4 starting=1
		+10ms tick go -> held=4
		+4s tick go a! -> admitted=4 held=4 starting=1
		end:1 go a! -> admitted=5 held=4`},
	{"a window of this proxy pays its share of what answers have charged", `{"name":"r",` + byUser +
		`,"limits":["10/10s"],"settle":{},"hold":"80s","on_unavailable":"local"}`, `
		proxies:2 silent a end:1=20 +20s a -> decided=2 admitted=1
		+10s a -> admitted=1
		+10s a -> admitted=2`},
	{"an answer is charged to this proxy's share of a bucket, which renewals do not fill faster",
		`{"name":"r",` + byUser + `,"algorithm":"token_bucket","limits":["90/90s"],"settle":{},"hold":"80s",` +
			`"on_unavailable":"local"}`, `
		proxies:3 silent a a end:1=30 a -> decided=3 admitted=2
		12*+1s,renew 9*a -> admitted=5`},
	{"or what else on_unavailable says", strings.Replace(localRule, `"local"`, `"allow"`, 1), `
		forget 9*a! -> admitted=9 starting=9 held=0`},
	{"a rule that holds nothing does not wait for a store to start, nor for another rule",
		slotRule + `,{"name":"s","limits":["9/1m"],` + byUser + `,"on_unavailable":"deny"}`, `
		forget a! -> admitted=1 waits=0 used=2`},
	{"a new stream begins with what is held", slotRule, `
		a! b! -> held=2
		forget up cut +20ms tick go -> held=2`},
	{"and so does one of a later configuration, before the store loses its state",
		slotRule, `
		a a a go heir go -> held=3
		forget +20ms tick go -> held=3`},
	{"requests of many configurations may run at once", strings.Replace(slotRule, `"3"`, `"100"`, 1), `
		70*a,go,heir a go -> held=71 admitted=1`},
	{"a service that takes no more asks hears within a second what has changed, not at once", slotRuleThatDenies, `
		a! a a end:1 -> admitted=1 decided=1 held=1
		busy -> admitted=1 decided=3 sent=0
		+1s tick -> sent=1
		go a! -> admitted=2 held=1`},
	{"a service that knows no reports is as good as silent",
		`{"name":"r",` + byUser + `,` + slots4 + `,"on_unavailable":"deny"}`, `
		old a 20*+10ms,serve,tick -> decided=1 admitted=0
		500*+10ms,serve,serve,serve,serve,serve,tick -> messages<=6`},
	{"what costs more than max_hold has charged is charged, by an account of its own",
		strings.Replace(loginRule, `3/1m`, `9/1d`, 1), `
		a! max:1=0s 100*+1s,renew,go a! end:1=5 go -> used=5`},
	{"a later configuration reports what an ended one has not", slotRuleThatDenies, `
		a a go b end:2 heir go -> held=1`},
	{"what max_hold has ended frees nothing of another request's at its end", slotRule, `
		a a go max:1=0s 81*+1s,renew,go -> held=1
		end:1 go -> held=1`},
	{"max_hold ends what a silent service's proxy counts itself", localRule, `
		silent 5*a -> admitted=4 decided=5
		max:1=80s 171*+1s,renew a -> admitted=5
		a -> admitted=5 decided=7`},
	{"max_hold ends what a rule of scope proxy holds, whatever a request before has reported", proxySlot, `
		silent a:x b max:2=0s 95*+1s,renew b -> admitted=3`},
}

// proxySlot has a rule that reports what it holds, if a request has v, before one that does not.
const proxySlot = `{"name":"reports","scope":"cluster","key":[{"header":"v"}],"missing_key":"skip",` +
	slots4 + `,"hold":"80s","on_unavailable":"local"},` +
	`{"name":"r","key":[{"header":"u"}],"algorithm":"concurrency","limits":["1"],"hold":"80s"}`

const (
	// everySlot counts the requests of all users together.
	everySlot = `{"name":"all","scope":"cluster","algorithm":"concurrency","limits":["99"],"hold":"80s",` +
		`"on_unavailable":"deny"}`
	prolonged = `{"name":"r",` + byUser + `,"limits":["99/1m"],"settle":{},"hold":"80s","on_unavailable":"deny",` +
		`"block":{"for":"1h","prolong":true}}`
)

// lookScripts are of users that ask for their own usage.
var lookScripts = []script{
	{"a look is told what is used, and uses nothing", noLease, `
		2*a! look:a -> looked=0 waits=1
		go -> looked=1 known=1 shown=2 asked=1 waits=0
		a! look:b go -> looked=2 known=1 shown=0 admitted=3
		look:a go -> looked=3 shown=3 used=3`},
	{"looks at one key are asked together", strings.Replace(noLease, "3/1m", "99/1m", 1), `
		b 3*look:a a -> looked=0
		serve -> asked=1 admitted=1
		serve -> looked=3 asked=2 admitted=2`},
	{"a look is told what is held", slotRule, `
		2*a! look:a go -> known=1 shown=2
		end:1 look:a go -> known=1 shown=1`},
	{"each rule is told its own key, also beside one that this proxy counts",
		strings.Replace(noLease, `"r"`, `"first"`, 1) + `,{"name":"proxy","limits":["9/1m"]},` +
			`{"name":"last","lease":"off","limits":["9/1m"],"scope":"cluster"}`, `
		a! 2*b! look:a go -> known=3 shown=7`},
	{"a look at more rules than an ask takes", several(17, `{"name":"r#",`+byUser+`,"limits":["9/1m"],"lease":"off"}`), `
		look:a go -> looked=1 known=17 shown=0 asked=2`},
	{"a look at a key that a rule does not limit", `{"name":"r",` + byUser +
		`,"limits":["9/1m"],"overrides":[{"key":["a"],"unlimited":true}]}`, `look:a -> looked=1 known=1 shown=0 asked=0`},
	{"without the service a look is told nothing, at once if it is known to be silent", noLease, `
		look:a 12*+10ms,tick -> looked=1 known=0 silent=1
		look:a -> looked=2 known=0 waits=0`},
	{"a look that waits when the stream ends is asked again", noLease, `
		a! look:a cut +20ms tick go -> looked=1 known=1 shown=1 opened=2`},
	{"too many keys are not looked at", several(16, `{"name":"r#",`+byUser+`,"limits":["9/1m"],"lease":"off"}`), `
		300*look:# -> looked=44
		go 3*tick -> looked=300`},
}

// silenceScripts are what on_unavailable makes of a service that goes silent.
func silenceScripts() (list []script) {
	for then, admitted := range map[string]int{"local": 50, "allow": 200, "deny": 0} {
		back := ""
		if then == "local" {
			back = "admitted=100" // what was admitted alone is counted
		}
		rule := strings.Replace(perUser, `"limits"`, `"on_unavailable":"`+then+`","limits"`, 1)
		list = append(list, script{"a silent service is waited for once: " + then, rule, fmt.Sprintf(`
			proxies:2 a 9*+10ms,tick -> decided=0
			+20ms tick -> decided=1
			199*a -> decided=200 admitted=%d
			20*+100ms,tick,go -> silent=0
			200*a! -> %s`, admitted, back)})
	}
	return list
}

// sharingScripts are of rules that share a counter, or an ask.
func sharingScripts() (list []script) {
	for _, lease := range []string{`"auto"`, `5`, `"off"`} {
		rule := counter + `,"limits":["100/1m"],"lease":` + lease + `}`
		list = append(list, script{"rules of one counter need one ask: " + lease, several(2, rule), `
			a serve -> admitted=1 sent=0`})
		for _, mode := range []string{"enforce", "shadow"} {
			own := fmt.Sprintf(`{"name":"r","limits":["3/1m"],"lease":%s,%s}`, lease, byUser)
			other := fmt.Sprintf(`{"name":"f","mode":%q,"limits":["100/1m"],"scope":"cluster","key":[{"header":"v"}],`+
				`"missing_key":"skip","lease":%s}`, mode, lease)
			list = append(list, script{"two answers of a message are of one key: " + lease + mode, own + "," + other, `
				x a a:v a:vv 10*serve -> admitted=4`})
		}
	}
	return list
}

// shadowScripts are of shadow rules beside enforced ones.
func shadowScripts() (list []script) {
	for _, first := range []string{`"off"`, `"auto"`} {
		for _, second := range []string{`"off"`, `"auto"`} {
			trying := fmt.Sprintf(`{"name":"tried","mode":"shadow","limits":["3/1m"],"lease":%s,`, first)
			enforced := fmt.Sprintf(`{"name":"r","limits":["100/1m"],"lease":%s,`, second)
			rest := byUser + `,"on_unavailable":"deny"}`
			list = append(list, script{"many requests of a shadow rule without room for all: " + first + second,
				trying + rest + "," + enforced + rest, `
				x 5*a 40*+5ms,serve,tick -> admitted=6 messages<=5`})
		}
		for mode, contention := range map[string]string{"shadow": "deny", "enforce": "allow"} {
			rule := `{"name":"r#","limits":["100/1m"],"mode":%q,"on_contention":%q,"lease":%s,%s}`
			rules := several(16, fmt.Sprintf(rule, mode, contention, first, byUser)) +
				"," + fmt.Sprintf(rule, "enforce", contention, first, byUser)
			list = append(list, script{"more rules than an ask takes, enforced ones first: " + first + mode, rules, `
				a 10*serve -> admitted=1 messages<=3`})
		}
	}
	return list
}

// What a worker and its service make of requests, of messages that come or do not, and of time.
func TestScriptsOfAWorkerAndItsService(t *testing.T) {
	lists := [][]script{
		leaseScripts, holdScripts, lookScripts, silenceScripts(), sharingScripts(), shadowScripts(),
	}
	for _, list := range lists {
		for _, c := range list {
			t.Run(c.name, c.run)
		}
	}
}
