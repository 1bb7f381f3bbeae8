package quotaservice

import (
	flags "flag"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/action"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/quotaservice/balance"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
)

var update = flags.Bool("update", false, "write testdata/extremes.txt anew")

const day = 24 * hour

// victims are definitions of an honest proxy, by what the table calls them.
var victims = []struct {
	name    string
	windows []limit.Window
}{
	{"concurrency 5", []limit.Window{slots(5)}},
	{"settle, fixed 5/1h", []limit.Window{fixed(5, hour), slots(0)}},
	{"settle, per key 5/1h", []limit.Window{perKey(5, hour), slots(0)}},
	{"settle, counter 5/1h", []limit.Window{counter(5, hour), slots(0)}},
	{"settle, log 5/1h", []limit.Window{logOf(5, hour), slots(0)}},
	{"settle, bucket 5/1h", []limit.Window{bucket(5, hour, 5), slots(0)}},
	{"fixed 5/1h", []limit.Window{fixed(5, hour)}},
	{"per key 5/1h", []limit.Window{perKey(5, hour)}},
	{"counter 5/1h", []limit.Window{counter(5, hour)}},
	{"log 5/1h", []limit.Window{logOf(5, hour)}},
	{"bucket 5/1h", []limit.Window{bucket(5, hour, 5)}},
}

// extremes are what each number of a message is set to, as far as it takes them: one of 64 bits
// with a sign has the last ones as its lowest and as -1.
var extremes = []uint64{
	0, 1, 5, 50, 1<<8 - 1, limit.MaxLog, 1<<16 - 1, 1 << 31, 1<<32 - 2, 1<<32 - 1,
	uint64(limit.MinHoldNs) - 1, uint64(limit.MinHoldNs), uint64(limit.MaxHoldNs), uint64(limit.MaxHoldNs) + 1,
	uint64(limit.MaxPeriodNs), uint64(limit.MaxPeriodNs) + 1, 1<<63 - 1, 1 << 63, 1<<64 - 2, 1<<64 - 1,
}

// numeral is a number of a message.
type numeral struct {
	name string
	set  func(n uint64) (fits bool)
}

// numbers finds all numbers below v.
func numbers(name string, v reflect.Value) (all []numeral) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			all = append(all, numbers(name+"."+strings.ToLower(v.Type().Field(i).Name), v.Field(i))...)
		}
	case reflect.Slice:
		for i := range v.Len() {
			all = append(all, numbers(fmt.Sprintf("%s[%d]", name, i), v.Index(i))...)
		}
	case reflect.Bool:
		all = append(all, numeral{name, func(n uint64) bool { v.SetBool(n == 1); return n <= 1 }})
	case reflect.Int64:
		all = append(all, numeral{name, func(n uint64) bool { v.SetInt(int64(n)); return true }})
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		all = append(all, numeral{name, func(n uint64) bool { v.SetUint(n); return !v.OverflowUint(n) }})
	default: // keys and texts are no numbers
	}
	return all
}

// hostileMessage is what each hostile message begins with: it names the victim's counter and key.
func hostileMessage(windows []limit.Window) *quota.Asks {
	d := define(1, quota.LeaseOff, append([]limit.Window(nil), windows...)...)
	p := quota.Part{Definition: 1, Cost: 1, Waiting: 1, Ahead: 1}
	p.Report = quota.Report{Worker: 666, Held: 4, Since: 1, Number: 1}
	return &quota.Asks{
		Domain: "d", Process: 666, Definitions: []quota.Definition{d}, Asks: []quota.Ask{{ID: 1, Parts: []quota.Part{p}}},
		Returns: []quota.Return{{Grant: 1, Units: 1}},
	}
}

// attack sends messages on one stream, which then is gone.
func (b *rig) attack(messages ...*quota.Asks) {
	st, err := b.service.Open(Peer{Address: "hostile"}, func() {})
	require.NoError(b.t, err)
	for _, m := range messages {
		if st.Receive(m.Append(nil)) != nil {
			break
		}
	}
	st.Close()
}

// met is what an honest ask for a unit gets, and when one is granted if it asks again and again.
type met struct {
	first string
	ns    int64
}

func (m met) String() string {
	switch d := time.Duration(m.ns); {
	case m.ns == 0:
		return m.first
	case m.ns < minute:
		return fmt.Sprintf("%s, free after %.0f s", m.first, d.Seconds())
	case m.ns < day:
		return fmt.Sprintf("%s, free after %.0f min", m.first, d.Minutes())
	default:
		return fmt.Sprintf("%s, free after %.1f days", m.first, d.Hours()/24)
	}
}

// meets asks as an honest worker does.
func (b *rig) meets(windows []limit.Window) (m met) {
	began := b.clock.now
	h := b.holder(1, windows...)
	for {
		h.number++
		p := want(1)
		if windows[len(windows)-1].Algorithm == limit.Concurrency {
			p.Report = h.NewReport(h.worker, h.number, 0)
		}
		a := h.ask(p)
		word, wait := resultLabels[a.Outcome], int64(second)
		if a.Outcome == quota.Denied {
			require.NotEqual(b.t, limit.Never, a.Grants[0].WaitNs)
			wait = max(a.Grants[0].WaitNs, 1)
			if a.Grants[0].HeldBack {
				word = "held"
			}
		}
		m.ns = b.clock.now - began
		if m.ns == 0 {
			m.first = word
		}
		if a.Outcome == quota.Granted || m.ns > 10*limit.MaxPeriodNs {
			return m
		}
		b.clock.advance(max(wait, m.ns/128))
	}
}

// TestNumbersAtTheirExtremes: whatever a number of one message is, of a proxy that is gone then, it
// locks a key for no longer than the longest window of a policy may, after the longest hold.
// testdata/extremes.txt has what the next honest ask gets after a message that holds 4 units and is
// granted one, and where a number makes that worse.
func TestNumbersAtTheirExtremes(t *testing.T) {
	var table strings.Builder
	for _, v := range victims {
		meets := func(m *quota.Asks) met {
			b := old(t)
			b.attack(m)
			got := b.meets(v.windows)
			require.LessOrEqual(t, got.ns, limit.MaxPeriodNs+limit.MaxHoldNs, "%s: %+v", v.name, m)
			return got
		}
		usual := meets(hostileMessage(v.windows))
		fmt.Fprintf(&table, "%s: %s\n", v.name, usual)
		for i, of := range numbers("", reflect.ValueOf(hostileMessage(v.windows)).Elem()) {
			before := usual
			from, to := uint64(0), uint64(0)
			flush := func() {
				if before.ns > usual.ns {
					fmt.Fprintf(&table, "\t%s = %s: %s\n", of.name[1:], between(from, to), before)
				}
			}
			for _, n := range extremes {
				m := hostileMessage(v.windows)
				if !numbers("", reflect.ValueOf(m).Elem())[i].set(n) {
					continue
				}
				if got := meets(m); got != before {
					flush()
					before, from = got, n
				}
				to = n
			}
			flush()
		}
	}
	if *update {
		require.NoError(t, os.WriteFile("testdata/extremes.txt", []byte(table.String()), 0o600))
	}
	want, err := os.ReadFile("testdata/extremes.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), table.String())
}

// TestHoldsOfAPolicy: the service refuses what no policy may say.
func TestHoldsOfAPolicy(t *testing.T) {
	for holdNs, result := range map[int64]quota.Outcome{
		policy.MinHoldNs - 1: quota.Unknown, policy.MinHoldNs: quota.Granted,
		policy.MaxHoldNs: quota.Granted, policy.MaxHoldNs + 1: quota.Unknown,
	} {
		b := old(t)
		w := slots(1)
		w.PeriodNs = holdNs
		require.Equal(t, result, b.asking(w).ask(want(1)).Outcome, "%d", holdNs)
	}
}

// manyMessages are sent before an honest worker asks.
type manyMessages struct {
	name    string
	windows []limit.Window
	attack  func(b *rig)
	want    string
}

func hostileMessages() []manyMessages {
	settled, concurrent := []limit.Window{fixed(5, hour), slots(0)}, []limit.Window{slots(1000)}
	longest := []limit.Window{perKey(5, limit.MaxPeriodNs), slots(0)}
	shortest := []limit.Window{fixed(math.MaxUint32, limit.MinPeriodNs), slots(0)}
	held := func(worker uint64) *quota.Asks {
		m := hostileMessage(concurrent)
		m.Asks[0].Parts[0].Report = quota.Report{Worker: worker, Since: 1, Number: 1}
		return m
	}
	return []manyMessages{
		{"charges of a thousand workers", settled, func(b *rig) {
			for worker := range uint64(1000) {
				m := hostileMessage(settled)
				m.Asks[0].Parts[0].Report = quota.Report{Worker: 1000 + worker, Charged: math.MaxUint64, Since: 1, Number: 1}
				b.attack(m)
			}
		}, "denied, free after 366.0 days"},
		{"charges by a larger limit", settled, func(b *rig) {
			m := hostileMessage([]limit.Window{fixed(math.MaxUint32, hour), slots(0)})
			m.Asks[0].Parts[0].Charged = math.MaxUint64
			b.attack(m)
		}, "denied, free after 366.0 days"},
		{"charges by a smaller limit", settled, func(b *rig) {
			m := hostileMessage([]limit.Window{fixed(1, hour), slots(0)})
			m.Asks[0].Parts[0].Charged = math.MaxUint64
			b.attack(m)
		}, "denied, free after 366.0 days"},
		{"a limit that never pays", settled, func(b *rig) {
			m := hostileMessage(settled)
			m.Asks[0].Parts[0].Charged = math.MaxUint64
			b.attack(m, hostileMessage([]limit.Window{fixed(0, hour), slots(0)}))
		}, "denied, free after 366.0 days"},
		{"charges to the longest window", longest, func(b *rig) {
			m := hostileMessage(longest)
			m.Asks[0].Parts[0].Charged = math.MaxUint64
			b.attack(m)
		}, "denied, free after 732.0 days"},
		{"charges to the shortest window", shortest, func(b *rig) {
			m := hostileMessage(shortest)
			m.Asks[0].Parts[0].Charged = math.MaxUint64
			b.attack(m)
		}, "denied, free after 0 s"},
		{"256 workers", concurrent, func(b *rig) {
			var all []*quota.Asks
			for worker := range uint64(balance.MaxHolders) {
				all = append(all, held(1000+worker))
			}
			b.attack(all...)
		}, "busy, free after 1 min"},
	}
}

// TestManyHostileMessages: nor do many messages of a proxy that is gone then.
func TestManyHostileMessages(t *testing.T) {
	for _, c := range hostileMessages() {
		for what, want := range map[action.Action]string{&action.Inspect{}: c.want, &action.Reset{}: "granted"} {
			b := old(t)
			c.attack(b)
			d := define(1, quota.LeaseOff, c.windows...)
			_, err := b.service.Operate(t.Context(), "d", d, [16]byte{}, what)
			require.NoError(t, err)
			require.Equal(t, want, b.meets(c.windows).String(), c.name)
		}
	}
}

func between(from, to uint64) string {
	if from == to {
		return power(from)
	}
	return power(from) + " to " + power(to)
}

// power writes a number near a power of two, and a time, as such.
func power(n uint64) string {
	for _, bits := range []int{16, 31, 32, 63} {
		switch of := uint64(1) << bits; {
		case n == of:
			return fmt.Sprintf("2^%d", bits)
		case n > of/2 && n < of && of-n < 3:
			return fmt.Sprintf("2^%d-%d", bits, of-n)
		}
	}
	switch {
	case n > math.MaxUint64-3:
		return fmt.Sprintf("2^64-%d", -n)
	case n >= uint64(limit.MinHoldNs):
		return policy.FormatDuration(int64(n))
	}
	return fmt.Sprint(n)
}
