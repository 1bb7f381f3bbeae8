package policy

import (
	"math"
	"slices"
	"strings"

	"github.com/sluice-ratelimit/sluice/shared/limit"
)

var policyObject = newObject("policy", []field[Policy]{
	{"version", required(integer(Version, Version)), "", func(r *reader, v value, _ *Policy) { r.integer(v) }},
	{"revision", nameShape, "", readRevision},
	{"domain", nameShape, DefaultDomain, func(r *reader, v value, p *Policy) { p.Domain = r.name(v) }},
	words("headers", "none", func(p *Policy) *Headers { return &p.Headers },
		HeadersNone, HeadersIETF, HeadersXRateLimit, HeadersBoth),
	{"quota", objectOf("quota"), "", func(r *reader, v value, p *Policy) {
		p.Quota = &Quota{}
		readObject(r, v, quotaObject, p.Quota)
	}},
	{"rules", listOf(objectOf("rule"), 0, MaxRules), "", readRules},
	{"exempt", listOf(objectOf("match"), 0, MaxExempt), "", func(r *reader, v value, p *Policy) {
		p.Exempt = r.exemptions(v)
	}},
	{"manage", objectOf("manage"), "", func(r *reader, v value, p *Policy) {
		p.Manage = &Manage{}
		readObject(r, v, manageObject, p.Manage)
	}},
	{"usage", objectOf("usage"), "", func(r *reader, v value, p *Policy) {
		p.Usage = &Usage{}
		readObject(r, v, usageObject, p.Usage)
	}},
	words("report_keys", "hash", func(p *Policy) *ReportKeys { return &p.ReportKeys }, ReportHash, ReportPlain, ReportOff),
	{"report_secret", textShape, "", readReportSecret},
})

// DefaultDomain is the domain of a policy that names none.
const DefaultDomain = "default"

const (
	// MaxClusterBytes is the longest name of a cluster: Istio's hold a service's full
	// host name.
	MaxClusterBytes = 256
	// MinTimeoutNs is the shortest time for which a request may wait for the quota
	// service.
	MinTimeoutNs int64 = 1_000_000
	// MaxTimeoutNs is the longest.
	MaxTimeoutNs int64 = 10_000_000_000
)

var quotaObject = newObject("quota", []field[Quota]{
	{"cluster", textShape, "sluice_quota", func(r *reader, v value, q *Quota) {
		q.Cluster = r.textOf(v, MaxClusterBytes)
	}},
	{"timeout", durationShape, "100ms", func(r *reader, v value, q *Quota) {
		q.TimeoutNs = r.durationIn(v, MinTimeoutNs, MaxTimeoutNs, DurationRange)
	}},
})

// setQuota gives a policy with rules of scope cluster the defaults of quota.
func (r *reader) setQuota(p *Policy) {
	isCluster := func(rule Rule) bool { return rule.Scope == ScopeCluster }
	if p.Quota == nil && slices.ContainsFunc(p.Rules, isCluster) {
		p.Quota = &Quota{}
		readObject(r, valueOf(&Node{Kind: Object}), quotaObject, p.Quota)
	}
}

var manageObject = newObject("manage", []field[Manage]{
	{"path", required(textOf("manage_path")), "", readManagePath},
	{"token_sha256", required(textOf("sha256")), "", readTokenHash},
	{"port", integer(1, math.MaxUint16), "", func(r *reader, v value, m *Manage) { m.Port = uint16(r.integer(v)) }},
})

// MaxRevisionBytes is the longest revision; a policy file leaves that much
// room below MaxBytes for the control plane to add it.
const MaxRevisionBytes = 64

func readRevision(r *reader, v value, p *Policy) {
	if !r.pushed {
		r.fail(v, Reserved)
		return
	}
	p.Revision = r.name(v)
	if p.Revision != "" {
		r.fits(v, MaxRevisionBytes)
	}
}

// ReportSecretBytes is the length of a report secret: 256 bits in hexadecimal.
const ReportSecretBytes = 64

func readReportSecret(r *reader, v value, p *Policy) {
	if !r.pushed {
		r.fail(v, Reserved)
		return
	}
	p.ReportSecret = r.textOf(v, ReportSecretBytes)
}

func readManagePath(r *reader, v value, m *Manage) {
	s, ok := r.text(v)
	if !ok {
		return
	}
	isPlain := !strings.ContainsAny(s, "?#% \\") && !strings.Contains(s, "//")
	m.Path = s
	if s == "/" || s[0] != '/' || s[len(s)-1] != '/' || !isPlain {
		r.fail(v, BadManagePath)
	}
}

// MaxUsagePathBytes is the longest path of usage.
const MaxUsagePathBytes = 256

var usageObject = newObject("usage", []field[Usage]{
	{"path", required(textOf("usage_path")), "", readUsagePath},
})

// readUsagePath takes a path that has one spelling and looks like no pattern.
func readUsagePath(r *reader, v value, u *Usage) {
	u.Path = r.textOf(v, MaxUsagePathBytes)
	if u.Path == "" {
		return
	}
	isPlain := !strings.Contains(u.Path, "//") && !strings.Contains(u.Path+"/", "/./") &&
		!strings.Contains(u.Path+"/", "/../")
	for i := range len(u.Path) {
		c := u.Path[i]
		isPlain = isPlain && c > ' ' && c <= '~' && strings.IndexByte(`?#%\*;"<>^{|}`+"`", c) < 0
	}
	if u.Path == "/" || u.Path[0] != '/' || !isPlain {
		r.fail(v, BadUsagePath)
	}
}

// fitsUsage refuses a path of usage at which management answers.
func (r *reader) fitsUsage(v value, p *Policy) {
	if p.Usage != nil && p.Manage != nil && p.Manage.Path != "" && strings.HasPrefix(p.Usage.Path, p.Manage.Path) {
		r.fail(v.field("usage").field("path"), ManagedUsagePath, p.Manage.Path)
	}
}

// emptySHA256 is the SHA-256 of no bytes, which a shell's pipe gives if TOKEN is not set.
var emptySHA256 = [32]byte{
	0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
	0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
}

func readTokenHash(r *reader, v value, m *Manage) {
	s := v.Text
	ok := v.Kind == String && len(s) == 2*len(m.TokenSHA256)
	for i := 0; ok && i < len(s); i += 2 {
		ok = isHex(s[i]) && isHex(s[i+1])
		m.TokenSHA256[i/2] = hexValue(s[i])<<4 | hexValue(s[i+1])
	}
	if !ok || m.TokenSHA256 == emptySHA256 {
		r.fail(v, BadTokenHash)
	}
}

func readRules(r *reader, v value, p *Policy) {
	if !r.items(v) && v.Kind != List {
		return
	}
	p.Rules = make([]Rule, min(len(v.Items), MaxRules))
	r.rules = make([]ruleAt, len(p.Rules))
	for i := range p.Rules {
		at := v.item(i)
		before := r.count()
		readRule(r, at, &p.Rules[i])
		r.rules[i] = ruleAt{value: at, sound: r.count() == before}
	}
}

const (
	// DefaultCapacity is the capacity of a rule that has none: the default of the field.
	DefaultCapacity = 65536
	// MaxCapacity is the most live keys of a counter, 2²⁴: some 600 MB at three
	// windows a key, beyond any Envoy that also serves requests.
	MaxCapacity = 1 << 24
	// MaxWindows is how many windows a rule may have.
	MaxWindows = 16
	// MaxExempt is how many exemptions a rule, or a policy for all rules, may have.
	MaxExempt = 100
	// MaxCosts is how many costs a rule may have.
	MaxCosts = 100
)

// ruleObject is one item of "rules". The order of its fields matters: see ruleState.
var ruleObject = newObject("rule", []field[Rule]{
	{"name", required(nameShape), "", func(r *reader, v value, rule *Rule) { rule.Name = r.name(v) }},
	{"counter", nameShape, "", func(r *reader, v value, rule *Rule) { rule.Counter = r.name(v) }},
	words("scope", "proxy", func(r *Rule) *Scope { return &r.Scope }, ScopeProxy, ScopeCluster),
	{"match", objectOf("match"), "", func(r *reader, v value, rule *Rule) { readObject(r, v, matchObject, &rule.Match) }},
	{"exempt", listOf(objectOf("match"), 0, MaxExempt), "", func(r *reader, v value, rule *Rule) {
		rule.Exempt = r.exemptions(v)
	}},
	{"key", listOf(objectOf("key"), 0, MaxKeyParts), "", readKey},
	{"algorithm", ofRules, "fixed_window", func(r *reader, v value, _ *Rule) { r.rule.algorithm = r.algorithm(v) }},
	{"limits", required(listOf(objectOf("limit"), 0, MaxWindows)), "", readLimits},
	{"overrides", listOf(objectOf("override"), 0, MaxOverrides), "", readOverrides},
	{"cost", costs, "1", readCost},
	{"settle", objectOf("settle"), "", readSettle},
	{"hold", durationShape, "10m", func(r *reader, v value, rule *Rule) {
		rule.HoldNs = r.durationIn(v, MinHoldNs, MaxHoldNs, HoldRange)
	}},
	{"max_hold", durationShape, "", func(r *reader, v value, rule *Rule) { rule.MaxHoldNs, _ = r.duration(v) }},
	{"linger", durationShape, "1s", func(r *reader, v value, rule *Rule) {
		rule.LingerNs = r.durationIn(v, 0, MaxLingerNs, DurationRange)
	}},
	{"count_denied", boolShape, "false", func(r *reader, v value, rule *Rule) { rule.CountDenied = r.boolean(v) }},
	{"block", choice("block", durationShape, objectOf("block")), "", readBlock},
	{"usage", boolShape, "true", func(r *reader, v value, rule *Rule) { rule.Hidden = !r.boolean(v) }},
	words("mode", "enforce", func(r *Rule) *Mode { return &r.Mode }, ModeEnforce, ModeShadow, ModeOff),
	{"enforce_percent", integer(0, 100), "100", func(r *reader, v value, rule *Rule) {
		rule.EnforcePercent = uint8(r.integer(v))
	}},
	{"capacity", integer(1, MaxCapacity), "65536", func(r *reader, v value, rule *Rule) {
		rule.Capacity = uint32(r.integer(v))
	}},
	words("on_full", "inherit", func(r *Rule) *OnFull { return &r.OnFull }, FullInherit, FullDeny, FullAllow),
	words("on_error", "allow", func(r *Rule) *Failure { return &r.OnError }, FailAllow, FailDeny),
	words("on_contention", "deny", func(r *Rule) *Failure { return &r.OnContention }, FailDeny, FailAllow),
	{"lease", choice("lease", word("auto", "off"), integer(1, MaxLease)), "auto", readLease},
	words("on_unavailable", "local", func(r *Rule) *OnUnavailable { return &r.OnUnavailable },
		UnavailableLocal, UnavailableAllow, UnavailableDeny),
	{"response", objectOf("response"), "", func(r *reader, v value, rule *Rule) {
		readObject(r, v, responseObject, &rule.Response)
		r.rule.givesBody = v.has("body")
	}},
	{"missing_key", missingKeys, "skip", readMissingKey},
})

func readRule(r *reader, v value, rule *Rule) {
	r.rule = ruleState{Rule: rule, algorithm: limit.FixedWindow}
	rule.Response = DefaultResponse()
	if !readObject(r, v, ruleObject, rule) {
		return
	}
	r.fitsHold(v, rule)
	isBucket := func(l Limit) bool { return l.Algorithm == limit.TokenBucket }
	switch {
	case rule.CountDenied && r.rule.holds():
		r.fail(v.field("count_denied"), HeldDenials)
	case rule.CountDenied && slices.ContainsFunc(rule.Limits, isBucket):
		r.fail(v.field("count_denied"), CountDenied)
	}
	if rule.Mode == ModeShadow {
		r.refuse(v, ShadowPercent, "enforce_percent")
	}
	if rule.Block != nil {
		r.fitsBlock(v, rule)
	}
	r.fitsScope(v, rule)
	rule.setUnits()
	if rule.Counter == "" {
		rule.Counter = rule.Name
	}
}

var blockObject = newObject("block", []field[Block]{
	{"for", required(durationShape), "", readBlockFor},
	{"prolong", boolShape, "false", func(r *reader, v value, b *Block) { b.Prolong = r.boolean(v) }},
})

func readBlock(r *reader, v value, rule *Rule) {
	rule.Block = &Block{}
	switch v.Kind {
	case Object:
		readObject(r, v, blockObject, rule.Block)
	case String:
		readBlockFor(r, v.as(FormDuration), rule.Block)
	default:
		r.fail(v, WrongValue)
	}
}

func readBlockFor(r *reader, v value, b *Block) {
	b.ForNs = r.durationIn(v, limit.MinBlockNs, limit.MaxBlockNs, DurationRange)
}

// fitsBlock refuses a block where nothing could begin it or hold its end.
func (r *reader) fitsBlock(v value, rule *Rule) {
	most := MaxWindows - 1
	if rule.Settle != nil {
		most = MaxSettledWindows - 1
	}
	switch {
	case r.rule.algorithm == limit.Concurrency:
		r.fail(v.field("block"), BlockConcurrency)
	case len(rule.Limits) == most+1: // of more, "limits" itself has said so
		r.fail(v.field("limits"), BlockWindows, itoa(int64(most)))
	}
}

// exemptions reads a list of matches. It refuses one without conditions, which would exempt
// every request: nobody means that.
func (r *reader) exemptions(v value) (list []Match) {
	if !r.items(v) {
		return nil
	}
	for i := range v.Items {
		at := v.item(i)
		if at.Kind == Object && len(at.Fields) == 0 {
			r.fail(at, ExemptsAll)
			continue
		}
		var m Match
		readObject(r, at, matchObject, &m)
		list = append(list, m)
	}
	return list
}
