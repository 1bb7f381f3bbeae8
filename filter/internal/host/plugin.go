package host

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"unsafe"

	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm"
	"github.com/proxy-wasm/proxy-wasm-go-sdk/proxywasm/types"

	"github.com/sluice-ratelimit/sluice/filter/internal/engine"
	"github.com/sluice-ratelimit/sluice/filter/internal/hold"
	"github.com/sluice-ratelimit/sluice/filter/internal/respond"
	"github.com/sluice-ratelimit/sluice/filter/internal/usage"
	"github.com/sluice-ratelimit/sluice/shared/origin"
	"github.com/sluice-ratelimit/sluice/shared/policy"
	"github.com/sluice-ratelimit/sluice/shared/result"
	"github.com/sluice-ratelimit/sluice/shared/state"
)

// tickMs is how often metrics are published and heartbeats written.
const tickMs = 1000

// Register makes this VM serve the filter. Call it from init.
func Register() { proxywasm.SetVMContext(&vm{}) }

type vm struct {
	types.DefaultVMContext
	counted bool
}

// OnVMStart counts this VM. Envoy calls it for each configuration, and makes one more VM for its
// trial. Between configurations, a VM is made only in place of one that has crashed.
func (v *vm) OnVMStart(int) types.OnVMStartStatus {
	if !v.counted {
		must(importIncrementMetric(define(kindCounter, counterName(&engine.VMStarts)), 1))
	}
	v.counted = true
	return types.OnVMStartStatusOK
}

func (*vm) NewPluginContext(context uint32) types.PluginContext {
	p := &plugin{context: context}
	plugins = append(plugins, p)
	return p
}

// plugins are the configurations in this VM: few, also refused ones.
var plugins []*plugin

// pluginOf returns the configuration of a root context, nil if there is none.
func pluginOf(context uint32) *plugin {
	for _, p := range plugins {
		if p.context == context {
			return p
		}
	}
	return nil
}

// plugin is one configuration of the filter in one VM. Several live side by
// side while a configuration changes, so it owns all that it needs.
type plugin struct {
	types.DefaultPluginContext
	context uint32

	// From OnPluginStart on:
	engine      *engine.Engine // nil if the policy was refused
	quota       *quotaTalk     // nil without rules of scope cluster
	words       bool           // access logs get every verdict, not only notable ones
	report      reportKind
	manage      *policy.Manage // nil: there are no management requests
	managePort  uint16         // where they are answered, 0 = on any port
	holdNs      int64          // the shortest hold of the rules, 0 if none holds
	self        uint64         // a random number: which row of what is held is this plugin's
	fieldWriter respond.Fields

	// From callback to callback:
	conflicts int            // see watch
	isSplit   bool           // see split
	guesses   origin.Guesses // wrong tokens of management requests
	renewedNs int64          // when holds were last renewed
	renewsAt  int            // the bucket of streams at which that ended
	lingering []lingeringHold
	lingersNs int64            // when the first of them ends
	counters  []counter        // in the order of engine.EachMetric
	holding   []shownHolding   // in the order of engine.EachHolding
	idle      []*stream        // ended streams, to be re-used
	idleScans []*usage.Scanner // to be re-used

	// Within one callback. Only the memory is kept for the next:
	fields                 []respond.Field
	holds                  []hold.Hold
	details, headers, body []byte           // of a denial
	word                   []byte           // the verdict for access logs
	sent                   []string         // fields that the upstream sent
	settled                []result.Settled // of the request that ends
}

// reportKind says how every verdict is published with its keys, beside the word for access logs.
type reportKind uint8

const (
	noReport    reportKind = iota
	briefReport            // in place of the word
	wholeReport
)

// A configuration splits when a stream comes after conflictTicks ticks that found a conflict. By
// then, a replaced configuration gets no streams: Envoy's workers take the new one within
// milliseconds. conflictFades ticks without a conflict undo one tick with it: an owner that was
// late once does not add up to a conflict, and two filters that do conflict may miss each other
// in some ticks.
const (
	conflictTicks = 5
	conflictFades = 10
)

// OnPluginStart reads the policy. It logs every problem of a refused one, because
// Envoy's NACK does not carry the reason.
func (p *plugin) OnPluginStart(int) types.OnPluginStartStatus {
	arena.reset()
	configuration, err := proxywasm.GetPluginConfiguration()
	if err != nil {
		proxywasm.LogCritical("sluice: read the plugin configuration: " + err.Error())
		return types.OnPluginStartStatusFailed
	}
	text := unsafe.String(unsafe.SliceData(configuration), len(configuration)) // whose parts the policy keeps
	pol, ok := readPolicy(text)
	if !ok {
		return types.OnPluginStartStatusFailed
	}
	p.manage = pol.Manage
	name := filterName()
	p.engine = engine.New(pol, &theProxy, engine.Identity{
		Owner: state.OwnerID(name), SplitOwner: state.OwnerID(name, "\x00", text),
		ConfiguredNs: theProxy.Now(), Random: fillRandom,
	})
	var random [8]byte
	fillRandom(random[:])
	p.self = binary.LittleEndian.Uint64(random[:])
	p.fieldWriter.Style = pol.Headers
	p.confine()
	p.words, p.report = readReports()
	p.holdNs = shortestHold(pol.Rules)
	p.quota = newQuotaTalk(p, pol)
	if err := proxywasm.SetTickPeriodMilliSeconds(tickMs); err != nil {
		proxywasm.LogCritical("sluice: set the tick period: " + err.Error())
		return types.OnPluginStartStatusFailed
	}
	return types.OnPluginStartStatusOK
}

// readReports reads which verdicts the node's metadata asks for.
func readReports() (words bool, report reportKind) {
	trace, isAsked := theProxy.Attribute("sluice\x00trace")
	switch {
	case trace == "brief":
		report = briefReport
	case isAsked || reportsWhole():
		report = wholeReport
	}
	verdicts, _ := theProxy.Attribute("xds\x00node\x00metadata\x00sluice\x00verdicts")
	return verdicts == "all", report
}

// readPolicy reads the policy, and logs why it is refused.
func readPolicy(text string) (*policy.Policy, bool) {
	doc, err := policy.ParseJSON(text)
	if err != nil {
		proxywasm.LogCritical("sluice: policy refused: " + err.Error() + ": the filter reads JSON, not YAML, in a " +
			"google.protobuf.StringValue: sluice render filter -f FILE writes that")
		return nil, false
	}
	pol, problems := policy.ReadPushed(doc)
	for i := range problems {
		if rest := len(problems) - i; i == maxLogged && rest > 1 {
			more := strconv.Itoa(rest) + " more problems: sluice validate prints them"
			proxywasm.LogCritical("sluice: policy refused: and " + more)
			break
		}
		proxywasm.LogCritical("sluice: policy refused: " + problems[i].Error())
	}
	return pol, len(problems) == 0 && !lacksCallback(pol)
}

// lacksCallback reports whether the policy needs a callback that Envoy does not make, and logs
// which. The configuration of the VM lists the callbacks that its capabilities leave out. needsOf
// in envoy/capabilities.go chooses them, so a change here is one there too.
func lacksCallback(pol *policy.Policy) bool {
	without, _ := proxywasm.GetVMConfiguration()
	lacks := func(callback, what string) bool {
		lacks := bytes.Contains(without, []byte(callback))
		if lacks {
			proxywasm.LogCritical("sluice: policy refused: " + what + " needs the callback " + callback + ", " +
				"which vm_config is " + string(without) + ": render vm_config anew with this policy")
		}
		return lacks
	}
	if pol.Headers != policy.HeadersNone && lacks("proxy_on_response_headers", "headers: "+string(pol.Headers)) {
		return true
	}
	for i := range pol.Rules {
		r := &pol.Rules[i]
		if r.Mode == policy.ModeOff || !r.Holds() {
			continue
		}
		of := "rule " + strconv.Quote(r.Name)
		if lacks("proxy_on_log", of) || r.Settle != nil && r.Settle.To.Tokens() &&
			(lacks("proxy_on_response_headers", of) || lacks("proxy_on_response_body", of)) {
			return true
		}
	}
	return false
}

// maxLogged is how many problems of one policy are logged: validate prints them
// all in sentences, and every VM that gets the policy logs the same.
const maxLogged = 50

// filterName is the name under which this configuration counts: every VM and every
// listener that runs the filter under one name shares its counters.
func filterName() string {
	name, _ := theProxy.Attribute("plugin_name")
	root, _ := theProxy.Attribute("plugin_root_id")
	return name + "\x00" + root
}

// split gives the configuration tables of its own, on the assumption that another
// filter of the same name has another policy. A replaced configuration does not
// get here: it gets no streams long before it would split. A listener that is
// being drained does get streams; it looks like a conflict, so it splits too.
func (p *plugin) split() {
	p.isSplit = true
	p.engine.Split()
	proxywasm.LogWarn("sluice: another filter of this name has another policy, or this one's listener is being drained: " +
		"they count apart; give each filter its own name")
}

// OnTick looks after the quota service as often as that needs, and once a second after all else:
// it renews holds, publishes metrics and keeps the tables registered.
func (p *plugin) OnTick() {
	arena.reset()
	if p.quota != nil && !p.quota.tick() {
		return
	}
	if p.engine != nil {
		p.engine.Survey()
		p.renew()
		if p.quota != nil {
			p.quota.flush(p.context)
		}
		p.flushMetrics()
		p.engine.Heartbeat()
		p.engine.ShareDenials()
		p.watch()
	}
}

// watch counts ticks with a conflict.
func (p *plugin) watch() {
	if p.engine.HasConflict() {
		p.conflicts += conflictFades
	} else if p.conflicts > 0 {
		p.conflicts--
	}
}

// OnPluginDone ends the configuration.
func (p *plugin) OnPluginDone() bool {
	plugins = slices.DeleteFunc(plugins, func(other *plugin) bool { return other == p })
	if newest.plugin == p {
		newest.plugin = nil
	}
	if p.engine != nil {
		p.endLingering(math.MaxInt64) // what lingers ends with its policy
	}
	if p.quota != nil {
		p.quota.end()
		p.quota = nil
	}
	if p.engine != nil {
		p.flushMetrics()
		p.gaugeHolding(func(state.StreamTotal) state.StreamTotal { return state.StreamTotal{} })
		p.forgetGauges()
		p.engine.Release()
		clear(p.engine.Policy().Rules) // the collector may take a constant for a pointer to them
		*p.engine, p.engine = engine.Engine{}, nil
	}
	return true
}
