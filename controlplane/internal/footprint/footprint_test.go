package footprint

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"github.com/sluice-ratelimit/sluice/build/buildtest"
	"github.com/sluice-ratelimit/sluice/build/proctest"
	"github.com/sluice-ratelimit/sluice/controlplane/quotatest"
	"github.com/sluice-ratelimit/sluice/envoy/sim"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/quota"
	"github.com/sluice-ratelimit/sluice/shared/top"
)

var update = flag.Bool("update", false, "write what policies take into testdata")

// read reads the rules of a policy.
func read(t *testing.T, rules string) (p *policy.Policy, text []byte, problems []policy.Problem) {
	t.Helper()
	text = []byte(`{"version":1,"rules":[` + rules + `]}`)
	doc, err := policy.ParseJSON(text)
	require.NoError(t, err)
	p, problems = policy.Read(doc)
	return p, text, problems
}

func of(t *testing.T, rules string) Footprint {
	t.Helper()
	p, text, problems := read(t, rules)
	require.Empty(t, problems)
	return Of(p, text)
}

// staysWithin demands that the worker of a host has no more memory than validate says.
func staysWithin(t *testing.T, host *sim.Host, m Footprint, what string, args ...any) {
	t.Helper()
	has, bound := host.Memory(0), m.RuleBytes+m.ExpressionBytes+m.ScanBytes+m.StatedBytes+m.DenialBytes
	t.Logf("%s: a worker has %d KiB, validate says %d", fmt.Sprintf(what, args...), has>>10, bound>>10)
	require.LessOrEqual(t, has, bound)
}

// Each row of the archive has rules, and before the next one what they take.
func TestRows(t *testing.T) {
	buildtest.Archives(t, "testdata/rows.txtar", *update, func(files []txtar.File) {
		for i := 0; i < len(files); i += 2 {
			text, err := json.Marshal(of(t, string(files[i].Data)))
			require.NoError(t, err)
			files[i+1].Data = fmt.Appendf(nil, "%s\n", text)
		}
	})
}

// worker is a proxy of one worker with rules.
func worker(t *testing.T, rules string, now *int64, dial func(sim.Call, *sim.Inbox) (sim.Peer, error)) *sim.Host {
	t.Helper()
	host, err := sim.New(t.Context(), sim.Options{
		Wasm: buildtest.Wasm(t), Workers: 1, VMID: "sluice", PluginName: "sluice", Seed: 1, CacheDir: buildtest.CacheDir(),
		Now: func() int64 { return *now }, Dial: dial,
	})
	require.NoError(t, err)
	t.Cleanup(host.Close)
	require.NoError(t, host.Configure([]byte(`{"version":1,"rules":[`+rules+`]}`)))
	return host
}

// What requests make of a rule without a key stays within the footprint.
func TestARuleWithoutAKeyStaysWithinTheFootprint(t *testing.T) {
	const rules = `{"name":"r","limits":["9/1h"]}`
	now := int64(1)
	host := worker(t, rules, &now, nil)
	serve := func(i int) {
		headers := [][2]string{{":path", fmt.Sprint("/", i)}, {":authority", fmt.Sprint(i)}}
		_, err := host.Serve(0, &sim.Request{Headers: headers})
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

// The tables of a policy's expressions stay within what validate prints of them.
func TestWorkersStayWithinTheFootprint(t *testing.T) {
	paths := map[string]string{
		"few large tables": `"~.*a.{10}%d"`, "many small ones": `"~/u%d/[0-9]+"`,
		"many instructions": `"~(?:a?){330}%d"`, "many classes": `"~\\pL{490}%d"`,
	}
	if proctest.Race { // one goroutine does all of it
		paths = map[string]string{"many small ones": paths["many small ones"]}
	}
	for name, path := range paths {
		size := 4000
		var list []string
		for i := range size {
			list = append(list, fmt.Sprintf(path, i))
		}
		p, text, problems := read(t, matching(list))
		if len(problems) > 0 { // as many as are taken
			_, err := fmt.Sscanf(problems[0].Path, "rules[0].match.paths[%d]", &size)
			require.NoError(t, err)
			list = list[:size]
			p, text, problems = read(t, matching(list))
		}
		require.Empty(t, problems)
		now := int64(1)
		host := worker(t, `{"name":"r","limits":["9/1h"]}`, &now, nil)
		before := host.Memory(0)
		require.NoError(t, host.Configure(text))
		takes := Of(p, text)
		grown, bound := host.Memory(0)-before, takes.ExpressionBytes
		t.Logf("%s: %d expressions, validate says %d KiB, a worker grew by %d KiB", name, len(list), bound>>10, grown>>10)
		require.LessOrEqual(t, grown, bound)
		staysWithin(t, host, takes, "with all else")
	}
}

func matching(paths []string) string {
	return `{"name":"matching","limits":["9/1h"],"match":{"paths":[` + strings.Join(paths, ",") + `]}}`
}

// deny sends a worker requests of more keys than are kept of each rule, and a tick after some.
func deny(t *testing.T, host *sim.Host, now *int64, every int) {
	t.Helper()
	for i := range 3 * top.MaxKeys / 2 {
		*now += 1e9
		_, err := host.Serve(0, &sim.Request{Headers: [][2]string{{"u", strings.Repeat("k", 40) + strconv.Itoa(i)}}})
		require.NoError(t, err)
		if i%every == every-1 {
			require.NoError(t, host.Tick(0))
		}
	}
}

// Rules that deny more keys than are kept take no more than Of says, however many denials lie between two
// ticks. Each worker stays within the sum of all figures. The keys by themselves double its memory once at the
// most, or make it grow by no more than their figure, which holds on the average of heaps of all sizes, too.
func TestDenialBytes(t *testing.T) { requireDenialBytes(t, 5) }

// requireDenialBytes does so with so many heaps, whose sizes go as far as ever.
func requireDenialBytes(t *testing.T, heaps int) {
	t.Helper()
	rules := make([]string, top.MaxRules+10)
	for i := range rules {
		rules[i] = fmt.Sprintf(`{"name":"r%d","key":[{"header":"u"}],"limits":["0/1h"],"capacity":8}`, i)
	}
	takes := func(rules string, every int) uint64 {
		now := int64(1)
		host := worker(t, rules, &now, nil)
		deny(t, host, &now, every)
		staysWithin(t, host, of(t, rules), "%d bytes of rules", len(rules))
		return host.Memory(0)
	}
	const reportOff = `],"report_keys":"off","exempt":[`
	hashed := strings.Join(rules, ",")
	bound := of(t, hashed).DenialBytes
	require.Zero(t, of(t, hashed+reportOff).DenialBytes)
	for _, every := range []int{16, 48} {
		var with, without uint64
		for heap := range heaps {
			var paths []string // which fill the heap
			for i := range 1 + 600/heaps*heap {
				paths = append(paths, fmt.Sprintf(`"~/u%d/[0-9]+"`, i))
			}
			all := hashed + "," + matching(paths)
			one, oneWithout := takes(all, every), takes(all+reportOff, every)
			require.LessOrEqual(t, one, max(2*oneWithout, oneWithout+bound))
			with += one
			without += oneWithout
		}
		n := uint64(heaps)
		t.Logf("a tick every %d denials: of %d heaps the average is %d KiB, without the keys %d KiB, validate says %d",
			every, heaps, with/n>>10, without/n>>10, bound>>10)
		require.LessOrEqual(t, with, without+n*bound)
	}
}

const userKey = `"key":[{"header":"u"}]`

// ruleKinds are rules of which each denies or counts all requests, and most is how many of a kind are measured.
var ruleKinds = []struct {
	most int
	rule string
}{
	{1000, `"limits":["9/1h"],"capacity":8,` + userKey},
	{1000, `"limits":["0/1h"],"match":{"paths":["/p#/*"]},` + userKey},
	{1000, `"limits":["0/1h"],"block":{"for":"1h"},` + userKey},
	{100, `"limits":["512/1h"],"algorithm":"sliding_window_log","block":{"for":"1h"},` + userKey},
	{
		1000,
		`"limits":["99999/1h"],"cost":9,"settle":{"to":"price","prices":[{"model":"*","input":9,"output":9}]},` + userKey,
	},
}

// A worker whose rules all deny each request, and which then gets another policy of the same size, stays within
// the footprint. A thousand rules are measured of the kind that takes most; with the tag long of each.
func TestRuleBytes(t *testing.T) {
	counts := []int{1, 10, 100}
	if proctest.Race { // one goroutine does all of it
		counts = counts[:2]
	}
	for _, kind := range ruleKinds {
		for _, count := range counts {
			requireRuleBytes(t, kind.rule, count)
		}
	}
	if !proctest.Race {
		requireRuleBytes(t, ruleKinds[len(ruleKinds)-1].rule, 1000)
	}
}

func requireRuleBytes(t *testing.T, rule string, count int) {
	t.Helper()
	rules := make([]string, count)
	for i := range rules {
		rules[i] = fmt.Sprintf(`{"name":"r%d",%s}`, i, strings.ReplaceAll(rule, "#", strconv.Itoa(i)))
	}
	all := strings.Join(rules, ",")
	now := int64(1)
	host := worker(t, all, &now, nil)
	deny(t, host, &now, 16)
	require.NoError(t, host.Configure([]byte(`{"version":1,"rules":[`+strings.ReplaceAll(all, "1h", "2h")+`]}`)))
	deny(t, host, &now, 48)
	takes := of(t, all)
	takes.ScanBytes = 0 // no answer is read
	staysWithin(t, host, takes, "%d times %s", count, rule)
	host.Close()
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
		var m quota.Results
		require.NoError(p.of.t, m.Decode(answer))
		p.of.stated += len(m.Results)
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
	host := worker(t, rule, &now, s.dial)
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
	takes := of(t, rule)
	grown, bound := host.Memory(0)-before, takes.StatedBytes
	t.Logf("a worker grew by %d KiB, and by %d KiB in the %d round trips in which it reported all; validate says %d",
		silent>>10, grown>>10, trips, bound>>10)
	require.LessOrEqual(t, grown, bound)
	staysWithin(t, host, takes, "with all else")
	require.LessOrEqual(t, trips, 140, "in time for a store that has lost its state")
}
