package footprint

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/controlplane/quotatest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/state"
	"github.com/sluice-ratelimit/sluice/shared/top"
)

func of(t *testing.T, rules string) Footprint {
	t.Helper()
	doc, err := policy.ParseJSON([]byte(`{"version":1,"rules":[` + rules + `]}`))
	require.NoError(t, err)
	p, problems := policy.Read(doc)
	require.Empty(t, problems)
	return Of(p)
}

// The memory is that of the algorithm's records at the largest limit of any key.
func TestMemoryOfAlgorithms(t *testing.T) {
	bytes := func(rules string) uint64 { return of(t, rules).Bytes }
	fixed := bytes(`{"name":"a","key":["host"],"limits":["9/1s"]}`)
	short := bytes(`{"name":"a","key":["host"],"limits":["9/1s"],"algorithm":"sliding_window_log"}`)
	long := bytes(`{"name":"a","key":["host"],"limits":["9/1s"],"algorithm":"sliding_window_log","overrides":[{"key":["a"],"limits":["512/1s"]}]}`)
	shared := bytes(`{"name":"a","key":["host"],"limits":["9/1s"],"algorithm":"sliding_window_log"},{"name":"b","counter":"a","key":["host"],"limits":["512/1s"],"algorithm":"sliding_window_log","mode":"off"}`)
	require.Greater(t, short, fixed)
	require.Greater(t, long, 65536*512*7*uint64(1))
	require.Equal(t, long, shared)
	require.Equal(t, fixed, bytes(`{"name":"a","key":["host"],"limits":["9/1s"],"overrides":[{"key":["a"],"limits":["4294967295/1s"]}]}`))
}

// A rule of scope cluster keeps leases, and with on_unavailable: local an ordinary
// table too.
func TestMemoryOfLeases(t *testing.T) {
	const rule = `{"name":"a","key":["host"],"limits":["9/1s","9/1m"],"capacity":1000`
	one := of(t, rule+`}`)
	require.Zero(t, one.LeaseBytes)
	require.Zero(t, one.StandbyBytes)
	deny := of(t, rule+`,"scope":"cluster","on_unavailable":"deny"}`)
	require.Equal(t, state.LeaseHostBytes(2, 1000), deny.LeaseBytes)
	require.Greater(t, deny.LeaseBytes, uint64(1000*(72+2*12)), "72 bytes a key and 12 a window")
	require.Equal(t, deny.LeaseBytes, deny.Bytes)
	require.Equal(t, state.LeaseGeometry(2, 1000).TotalSlots(), deny.Slots)
	require.Equal(t, state.WaitingTables*deny.LeaseBytes, deny.VanishedBytes)
	require.Zero(t, deny.StandbyBytes)
	local := of(t, rule+`,"scope":"cluster","lease":"off"}`)
	require.Equal(t, one.Bytes, local.StandbyBytes)
	require.Equal(t, deny.Bytes+one.Bytes, local.Bytes)
	require.Equal(t, deny.Slots, local.Slots)
	require.Equal(t, uint64(1000), local.Keys)
	require.Zero(t, of(t, rule+`,"scope":"cluster","mode":"off"}`).Bytes)

	second := strings.Replace(rule, `"a"`, `"b","counter":"a"`, 1) + `,"scope":"cluster"}`
	shared := of(t, rule+`,"scope":"cluster","on_unavailable":"deny"},`+second+`,`+strings.Replace(second, `"b"`, `"c"`, 1))
	require.Equal(t, local.Bytes, shared.Bytes, "rules of one counter share both tables")
	require.Equal(t, 1, shared.Counters)
}

// A rule without a key has one record, and so one page, whatever its capacity is.
func TestMemoryOfRulesWithoutAKey(t *testing.T) {
	const rule = `{"name":"a","limits":["9/1s"]`
	for name, fields := range map[string]string{
		"default capacity": `}`, "capacity of a page": `,"capacity":5}`,
		"cluster": `,"scope":"cluster"}`, "cluster alone": `,"scope":"cluster","on_unavailable":"deny"}`,
	} {
		one := of(t, rule+fields)
		require.EqualValues(t, 1, one.Keys, name)
		require.LessOrEqual(t, one.Slots, uint64(32), name)
		require.Less(t, one.Bytes, uint64(8<<10), name)
		require.LessOrEqual(t, one.VanishedBytes, state.WaitingTables*one.Bytes, name)
	}
	keyed := of(t, `{"name":"a","key":["host"],"limits":["9/1s"]}`)
	both := of(t, rule+`},{"name":"b","key":["host"],"limits":["9/1s"]}`)
	require.Equal(t, keyed.Keys+1, both.Keys)
	require.Equal(t, keyed.Bytes+of(t, rule+`}`).Bytes, both.Bytes)
	require.Equal(t, keyed.VanishedBytes, both.VanishedBytes)
}

// What requests make of a rule without a key stays within the footprint.
func TestARuleWithoutAKeyStaysWithinTheFootprint(t *testing.T) {
	const rules = `{"name":"r","limits":["9/1h"]}`
	now := int64(1)
	host, err := sim.New(t.Context(), sim.Options{
		Wasm: buildtest.Wasm(t), Workers: 1, VMID: "sluice", PluginName: "sluice", Seed: 1, CacheDir: buildtest.CacheDir(),
		Now: func() int64 { return now },
	})
	require.NoError(t, err)
	t.Cleanup(host.Close)
	require.NoError(t, host.Configure([]byte(`{"version":1,"rules":[`+rules+`]}`)))
	serve := func(i int) {
		_, err := host.Serve(0, &sim.Request{Headers: [][2]string{{":path", fmt.Sprint("/", i)}, {":authority", fmt.Sprint(i)}}})
		require.NoError(t, err)
		now += 1e9
	}
	before, entries := host.Shared().Bytes(), host.Shared().Len()
	for i := range 50 {
		serve(i)
	}
	grown, bound := host.Shared().Bytes()-before, of(t, rules).Bytes
	t.Logf("%d entries of %d bytes, validate says %d", host.Shared().Len()-entries, grown, bound)
	require.Positive(t, grown)
	require.LessOrEqual(t, uint64(grown), bound)
}

// What a rule that waits for answers takes: what is held stands in its records, a receipt is
// kept of each running request, and only tokens are read from answers.
func TestMemoryOfAnswers(t *testing.T) {
	const rule = `{"name":"a","key":["host"],"limits":["9/1s"]`
	plain, bytes := of(t, rule+`}`), of(t, rule+`,"settle":{"to":"response_bytes"}}`)
	require.Zero(t, plain.HeldBytes+plain.ScanBytes)
	require.EqualValues(t, heldStreamBytes, bytes.HeldBytes)
	require.Zero(t, bytes.ScanBytes)
	require.Greater(t, bytes.Bytes, plain.Bytes)
	for _, to := range []string{"tokens", "input_tokens", "output_tokens"} {
		require.EqualValues(t, 16_384*4096, of(t, rule+`,"settle":{"to":"`+to+`"}}`).ScanBytes)
	}
	slots := of(t, `{"name":"a","key":["host"],"algorithm":"concurrency","limits":[9]}`)
	require.EqualValues(t, heldStreamBytes, slots.HeldBytes)
	require.Zero(t, slots.ScanBytes)
	off := of(t, rule+`,"settle":{"to":"tokens"},"mode":"off"}`)
	require.Zero(t, off.HeldBytes+off.ScanBytes)
}

// Equal expressions count once.
func TestMemoryOfExpressions(t *testing.T) {
	memory := func(match string) uint64 {
		return of(t, `{"name":"a","key":["host"],"limits":["1/1s"],`+match+`}`).ExpressionBytes
	}
	one := memory(`"match":{"paths":["~/a+"]}`)
	require.Zero(t, memory(`"match":{"paths":["/a*"]}`))
	require.Greater(t, one, uint64(256<<10))
	require.Equal(t, one, memory(`"match":{"headers":{"h":"~/a+"}},"exempt":[{"paths":["~/a+"]}],"overrides":[{"key":["~/a+"],"unlimited":true}]`))
	require.Equal(t, one, of(t, `{"name":"a","limits":["9/1s"],"cost":[{"match":{"paths":["~/a+"]},"cost":2}]}],"exempt":[{"paths":["~/a+"]}`).ExpressionBytes)
	require.Equal(t, one, memory(`"settle":{"when":{"headers":{"h":"~/a+"}}}`))
	require.Greater(t, memory(`"match":{"headers":{"h":"~/a+"}},"overrides":[{"key":["~/b+"],"unlimited":true}]`), one)
}

// The tables of a policy's expressions stay within what validate prints of them.
func TestWorkersStayWithinTheFootprint(t *testing.T) {
	paths := map[string]string{
		"few large tables": `"~.*a.{10}%d"`, "many small ones": `"~/u%d/[0-9]+"`,
		"many instructions": `"~(?:a?){330}%d"`, "many classes": `"~\\pL{490}%d"`,
	}
	if buildtest.Race { // one goroutine does all of it
		paths = map[string]string{"many small ones": paths["many small ones"]}
	}
	for name, path := range paths {
		size := 4000
		var list []string
		for i := range size {
			list = append(list, fmt.Sprintf(path, i))
		}
		p, text, problems := read(t, list)
		if len(problems) > 0 { // as many as are taken
			_, err := fmt.Sscanf(problems[0].Path, "rules[0].match.paths[%d]", &size)
			require.NoError(t, err)
			list = list[:size]
			p, text, problems = read(t, list)
		}
		require.Empty(t, problems)
		host, err := sim.New(t.Context(), sim.Options{
			Wasm: buildtest.Wasm(t), Workers: 1, VMID: "sluice", PluginName: "sluice", Seed: 1, CacheDir: buildtest.CacheDir(),
			Now: func() int64 { return 1 },
		})
		require.NoError(t, err)
		t.Cleanup(host.Close)
		require.NoError(t, host.Configure([]byte(`{"version":1,"rules":[{"name":"r","limits":["9/1h"]}]}`)))
		before := host.Memory(0)
		require.NoError(t, host.Configure(text))
		grown, bound := host.Memory(0)-before, Of(p).ExpressionBytes
		t.Logf("%s: %d expressions, validate says %d KiB, a worker grew by %d KiB", name, len(list), bound>>10, grown>>10)
		require.LessOrEqual(t, grown, bound)
	}
}

func read(t *testing.T, paths []string) (*policy.Policy, []byte, []policy.Problem) {
	text := []byte(`{"version":1,"rules":[{"name":"r","limits":["9/1h"],"match":{"paths":[` + strings.Join(paths, ",") + `]}}]}`)
	doc, err := policy.ParseJSON(text)
	require.NoError(t, err)
	p, problems := policy.Read(doc)
	return p, text, problems
}

// Rules that deny more keys than are kept take no more than Of says, however many
// denials lie between two ticks.
func TestDenialBytes(t *testing.T) {
	for _, every := range []int{16, 48} {
		growsWithDenials(t, every)
	}
}

func growsWithDenials(t *testing.T, every int) {
	t.Helper()
	without := uint64(0) // what such a request takes itself
	for _, report := range []string{"off", "hash"} {
		var rules []string
		for i := range top.MaxRules + 10 {
			rules = append(rules, fmt.Sprintf(`{"name":"r%d","key":[{"header":"u"}],"limits":["0/1h"],"capacity":8}`, i))
		}
		text := []byte(`{"version":1,"report_keys":"` + report + `","rules":[` + strings.Join(rules, ",") + `]}`)
		doc, err := policy.ParseJSON(text)
		require.NoError(t, err)
		p, problems := policy.Read(doc)
		require.Empty(t, problems)
		now := int64(1)
		host, err := sim.New(t.Context(), sim.Options{
			Wasm: buildtest.Wasm(t), Workers: 1, VMID: "sluice", PluginName: "sluice", Seed: 1, CacheDir: buildtest.CacheDir(),
			Now: func() int64 { return now },
		})
		require.NoError(t, err)
		t.Cleanup(host.Close)
		require.NoError(t, host.Configure(text))
		serve := func(key string) {
			_, err := host.Serve(0, &sim.Request{Headers: [][2]string{{"u", strings.Repeat("k", 40) + key}}})
			require.NoError(t, err)
		}
		deny := func() {
			for i := range 3 * top.MaxKeys / 2 {
				now += 1e9
				serve(fmt.Sprint(i))
				if i%every == every-1 {
					require.NoError(t, host.Tick(0))
				}
			}
		}
		before := host.Memory(0)
		deny()
		grown, bound := host.Memory(0)-before, Of(p).DenialBytes
		t.Logf("%s, a tick every %d denials: a worker grew by %d KiB, validate says %d", report, every, grown>>10, bound>>10)
		if report == "off" {
			require.Zero(t, bound)
			without = grown
		}
		require.LessOrEqual(t, grown-without, bound)
	}
}

// service is a quota service that cannot be reached until it is up.
type service struct {
	*quotatest.Service
	t      *testing.T
	up     bool
	stated int
}

type peer struct {
	*quotatest.Stream
	of *service
	in *sim.Inbox
}

func (s *service) dial(_ sim.Call, in *sim.Inbox) (sim.Peer, error) {
	if !s.up {
		return nil, errors.New("down")
	}
	return &peer{s.Open(s.t), s, in}, nil
}

func (p *peer) Send(message []byte) {
	require.NoError(p.of.t, p.Receive(message))
	for answer := p.Next(); answer != nil; answer = p.Next() {
		var m quota.Answers
		require.NoError(p.of.t, m.Decode(answer))
		p.of.stated += len(m.Answers)
		p.in.Message(time.Millisecond, answer)
	}
}

func (p *peer) CloseSend() {}
func (p *peer) Cancel()    { p.Close() }

// As many keys as a worker states take no more than Of says, while the service is silent and when
// all are stated at once.
func TestStatedKeysStayWithinTheFootprint(t *testing.T) {
	const rule = `{"name":"r","scope":"cluster","key":[{"header":"u"}],"limits":["9/1h"],"settle":{}}`
	now := int64(1e18)
	s := &service{Service: quotatest.New(t, func() int64 { return now }), t: t}
	host, err := sim.New(t.Context(), sim.Options{
		Wasm: buildtest.Wasm(t), Workers: 1, VMID: "sluice", PluginName: "sluice", Seed: 1, CacheDir: buildtest.CacheDir(),
		Now: func() int64 { return now }, Dial: s.dial,
	})
	require.NoError(t, err)
	t.Cleanup(host.Close)
	require.NoError(t, host.Configure([]byte(`{"version":1,"rules":[`+rule+`]}`)))
	pass := func(ns int64) {
		now += ns
		s.Due()
		host.TickDue()
	}
	request := func(key int) *sim.Exchange {
		x, err := host.Start(0, &sim.Request{Headers: [][2]string{{"u", strconv.Itoa(key)}}})
		require.NoError(t, err)
		return x
	}
	for x := request(0); x.Paused(); {
		pass(1e7)
	}
	before := host.Memory(0)
	for key := range statedKeys + 100 {
		_, err := request(key).Finish()
		require.NoError(t, err)
	}
	silent := host.Memory(0) - before
	s.up = true
	pass(1e9)
	trips := 0
	for ; s.stated < statedKeys && trips < 1000; trips++ {
		pass(1e7)
	}
	grown, bound := host.Memory(0)-before, of(t, rule).StatedBytes
	t.Logf("a worker grew by %d KiB, and by %d KiB in the %d round trips in which all was stated; validate says %d", silent>>10, grown>>10, trips, bound>>10)
	require.LessOrEqual(t, grown, bound)
	require.LessOrEqual(t, trips, 140, "in time for a store that has lost its state")
}

// What a worker keeps of the keys that it states: of one where a rule has no key.
func TestMemoryOfStatedKeys(t *testing.T) {
	const rule = `{"name":"a","scope":"cluster","limits":["9/1s"],"settle":{}`
	require.EqualValues(t, 64<<20, of(t, rule+`,"key":["host"]}`).StatedBytes)
	require.EqualValues(t, 64<<20, of(t, rule+`,"key":["host"]},`+strings.Replace(rule, `"a"`, `"b"`, 1)+`,"key":["host"]}`).StatedBytes)
	require.EqualValues(t, 1<<10, of(t, rule+`}`).StatedBytes)
	require.Zero(t, of(t, strings.Replace(rule, "cluster", "proxy", 1)+`}`).StatedBytes)
	require.Zero(t, of(t, strings.Replace(rule, `,"settle":{}`, "", 1)+`}`).StatedBytes)
	require.Zero(t, of(t, rule+`,"mode":"off"}`).StatedBytes)
}
