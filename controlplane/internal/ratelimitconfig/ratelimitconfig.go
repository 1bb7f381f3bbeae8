// Package ratelimitconfig reads the configuration of the envoyproxy/ratelimit service, the
// descriptors of one domain as a tree, and finds the limit of a descriptor of a call in it.
//
// Its invariant: it accepts what that service accepts, the tree has all of it, and a descriptor meets
// the limit that it would meet there. Anything else is a problem with file, line and what would be
// right. It borrows the tree and the messages of policies, and makes no policy. It never imports a
// store, a server or a clock.
//
// ratelimitconfig.go reads a file into the tree, and sluice.go our own words in it. xds.go reads the same
// from an xDS resource. match.go finds the limit of a descriptor of a call, and names it in metrics.
package ratelimitconfig

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/policyfile/message"
	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// Config is one file or one xDS resource: the descriptors of a domain.
type Config struct {
	File        string // or the resource's name
	Domain      string
	Descriptors []*Descriptor
	CountDenied bool // a call that one descriptor denies counts in the others
	// Ignored are fields in a place where the service knows them and ignores them. Others are errors.
	Ignored policyfile.Errors
}

// Descriptor is a key with its value, and what holds for requests that have both.
type Descriptor struct {
	Key            string
	Value          string // empty = any; each * in it stands for any text
	Limit          *Limit // nil = none
	Descriptors    []*Descriptor
	ShadowMode     bool
	QuotaMode      bool
	DetailedMetric bool
	ValueToMetric  bool
	ShareThreshold bool             // all values that fit the * count together
	Metadata       *structpb.Struct // nil = none

	Path         string // "descriptors[0].descriptors[2]"
	Line, Column int
}

// Limit is how many requests are let through.
type Limit struct {
	Requests  uint32
	Unit      string // second, minute, hour, day, week, month or year
	Unlimited bool   // then Requests and Unit are zero, and there are no Windows
	Name      string
	Replaces  []string       // names of limits that do not count where this one does
	Windows   []limit.Window // what counts, in the order of limit.Window.Compare
	Sluice    bool           // it has words of ours, so Windows may be others than Requests in a Unit
}

// HasWildcard reports whether the value stands for several.
func (d *Descriptor) HasWildcard() bool { return strings.Contains(d.Value, "*") }

// Name is the key with its value, as the service names it.
func (d *Descriptor) Name() string {
	if d.Value == "" {
		return d.Key
	}
	return d.Key + "_" + d.Value
}

// Problem is a problem of the descriptor.
func (d *Descriptor) Problem(file, message string) policyfile.Problem {
	return policyfile.Problem{File: file, Line: d.Line, Column: d.Column, Path: d.Path, Message: message}
}

// Read reads the document of a file. An error is a policyfile.Errors.
func Read(file string, document *policy.Node) (*Config, error) {
	r := &reader{file: file}
	c := &Config{File: file, CountDenied: true}
	if document.Kind != policy.Object {
		r.fail(document, "", "must be an object, not "+message.Describe(document))
		return nil, r.problems
	}
	r.object(document, "", map[string]setter{
		"domain":      r.text(&c.Domain),
		"descriptors": r.list(r.descriptor(&c.Descriptors)),
		"sluice":      r.countDenied(c),
	})
	if c.Domain == "" && len(r.problems) == 0 {
		r.fail(document, "domain", "is missing: a configuration has a domain")
	}
	return r.finish(c)
}

// Join makes one configuration of each domain, in the order in which the domains appear. A domain
// that several describe is merged, or else an error: they may not have the same descriptors, and
// denied calls count unless one of them says otherwise. An error is a policyfile.Errors.
func Join(configs []*Config, merge bool) (joined []*Config, err error) {
	domains := map[string]*Config{}
	names := map[string]map[string]bool{} // of descriptors, by their domain
	for _, c := range configs {
		whole := domains[c.Domain]
		switch {
		case whole == nil:
			whole = &Config{File: c.File, Domain: c.Domain, CountDenied: true}
			domains[c.Domain] = whole
			names[c.Domain] = map[string]bool{}
			joined = append(joined, whole)
		case !merge:
			return nil, policyfile.Errors{{File: c.File, Path: "domain", Message: "the domain " + c.Domain + " is that of " +
				whole.File + ", too: put it in one file, or merge the files of a domain"}}
		}
		r := &reader{file: c.File}
		r.refuseSeen(c.Descriptors, names[c.Domain])
		if len(r.problems) > 0 {
			return nil, r.problems
		}
		whole.Descriptors = append(whole.Descriptors, c.Descriptors...)
		whole.Ignored = append(whole.Ignored, c.Ignored...)
		whole.CountDenied = whole.CountDenied && c.CountDenied
	}
	return joined, nil
}

// reader reads the objects of a file, and collects what is wrong with them.
type reader struct {
	file     string
	problems policyfile.Errors
	ignored  policyfile.Errors
}

// finish checks what is wrong only with several descriptors together.
func (r *reader) finish(c *Config) (*Config, error) {
	r.refuseDuplicates(c.Descriptors)
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	c.Ignored = r.ignored
	return c, nil
}

func (r *reader) fail(n *policy.Node, path, message string) {
	r.add(policyfile.Problem{File: r.file, Line: n.Line, Column: n.Column, Path: path, Message: message})
}

// maxProblems bounds what is said about a configuration that is wrong everywhere.
const maxProblems = 100

func (r *reader) add(p policyfile.Problem) {
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, p)
	}
}

// setter reads the value of one field.
type setter func(n *policy.Node, path string)

// object reads the fields of an object.
func (r *reader) object(n *policy.Node, path string, fields map[string]setter) {
	if n.Kind != policy.Object {
		r.fail(n, path, "must be an object, not "+message.Describe(n))
		return
	}
	seen := map[string]bool{}
	for _, f := range n.Fields {
		at, path := &policy.Node{Line: f.Line, Column: f.Column}, strings.TrimPrefix(path+"."+f.Name, ".")
		set := fields[f.Name]
		switch {
		case set == nil && isIgnoredHere(f.Name, path):
			r.ignore(at, path, belongsTo[f.Name])
		case set == nil:
			r.fail(at, path, unknown(f.Name, slices.Sorted(maps.Keys(fields))))
		case seen[f.Name]:
			r.fail(at, path, "is given twice: keep one")
		case f.Value.Kind != policy.Null:
			set(f.Value, path)
		}
		seen[f.Name] = true
	}
}

// belongsTo are the fields that the service knows, and where. It ignores them elsewhere.
var belongsTo = map[string]string{
	"domain": "the top level", "descriptors": "the top level or a descriptor",
	"key": "a descriptor", "value": "a descriptor", "rate_limit": "a descriptor", "shadow_mode": "a descriptor",
	"quota_mode": "a descriptor", "detailed_metric": "a descriptor", "value_to_metric": "a descriptor",
	"share_threshold": "a descriptor", "metadata": "a descriptor",
	"unit": "a rate_limit", "requests_per_unit": "a rate_limit", "unlimited": "a rate_limit", "name": "a rate_limit",
	"replaces": "a rate_limit",
}

// isIgnoredHere reports whether the service knows the field, whose place here is not right. An object
// sluice is ours: there is no such field in it, so it is unknown.
func isIgnoredHere(name, path string) bool {
	return belongsTo[name] != "" && !strings.HasSuffix(path, "sluice."+name)
}

func (r *reader) ignore(n *policy.Node, path, where string) {
	if len(r.ignored) < maxProblems {
		r.ignored = append(r.ignored, policyfile.Problem{
			File: r.file, Line: n.Line, Column: n.Column, Path: path, Message: "is ignored here: it belongs to " + where,
		})
	}
}

func unknown(name string, known []string) string {
	if near := message.Nearest(name, known); near != "" {
		return "unknown field: did you mean " + strconv.Quote(near) + "?"
	}
	return "unknown field: the fields here are " + strings.Join(known, ", ")
}

// descriptor reads a descriptor and appends it to a list.
func (r *reader) descriptor(list *[]*Descriptor) setter {
	return func(n *policy.Node, path string) {
		d := &Descriptor{Path: path, Line: n.Line, Column: n.Column}
		*list = append(*list, d)
		known := len(r.problems)
		r.object(n, path, map[string]setter{
			"key":             r.text(&d.Key),
			"value":           r.text(&d.Value),
			"rate_limit":      r.limit(d),
			"descriptors":     r.list(r.descriptor(&d.Descriptors)),
			"shadow_mode":     r.flag(&d.ShadowMode),
			"quota_mode":      r.flag(&d.QuotaMode),
			"detailed_metric": r.flag(&d.DetailedMetric),
			"value_to_metric": r.flag(&d.ValueToMetric),
			"share_threshold": r.flag(&d.ShareThreshold),
			"metadata":        r.metadata(&d.Metadata),
		})
		if len(r.problems) == known {
			r.checkDescriptor(n, d)
		}
	}
}

func (r *reader) checkDescriptor(n *policy.Node, d *Descriptor) {
	switch {
	case d.Key == "":
		r.fail(n, d.Path, "a descriptor needs a key")
	case d.ShareThreshold && !strings.Contains(d.Name(), "*"):
		r.fail(n, d.Path+".share_threshold", "needs a value with a *")
	}
}

// limit reads the rate_limit of a descriptor.
func (r *reader) limit(d *Descriptor) setter {
	return func(n *policy.Node, path string) {
		l := &Limit{}
		d.Limit = l
		var own *words
		known := len(r.problems)
		r.object(n, path, map[string]setter{
			"unit":              r.text(&l.Unit),
			"requests_per_unit": r.number(&l.Requests),
			"unlimited":         r.flag(&l.Unlimited),
			"name":              r.text(&l.Name),
			"replaces":          r.list(r.replaced(l)),
			"sluice":            r.words(&own),
		})
		if len(r.problems) == known {
			r.completeLimit(n, path, l, own)
		}
	}
}

// completeLimit sets the windows of a limit by what is read of it, or reports why it has none. Our own
// words may be nil.
func (r *reader) completeLimit(n *policy.Node, path string, l *Limit, own *words) {
	l.Sluice = own != nil
	hasLimits := l.Sluice && own.limits != nil
	unit := unitNamed(strings.ToLower(l.Unit))
	switch {
	case l.Name != "" && slices.Contains(l.Replaces, l.Name):
		r.fail(n, path+".replaces", "a limit cannot replace itself")
	case l.Unlimited && unit != nil:
		r.fail(n, path+".unit", "does not go with unlimited: keep one of the two")
	case l.Unlimited && l.Sluice:
		r.fail(n, path+".sluice", "does not go with unlimited: keep one of the two")
	case l.Unlimited:
		l.Requests, l.Unit = 0, ""
	case hasLimits && (l.Unit != "" || l.Requests > 0):
		r.fail(n, path+".sluice.limits", "stand in place of unit and requests_per_unit: keep one of the two")
	case hasLimits:
		r.windowsOfWords(n, path, l, own)
	case unit == nil:
		r.fail(n, path+".unit", fmt.Sprintf("must be second, minute, hour, day, week, month or year, not %q", l.Unit))
	default:
		l.Unit = unit.name
		l.Windows = unit.windows(l.Requests)
		if l.Sluice {
			r.windowsOfWords(n, path, l, own)
		}
	}
}

// replaced reads the name of a limit that another one replaces.
func (r *reader) replaced(l *Limit) setter {
	return func(n *policy.Node, path string) {
		name := ""
		r.object(n, path, map[string]setter{"name": r.text(&name)})
		r.addReplaced(n, path, l, name)
	}
}

func (r *reader) addReplaced(n *policy.Node, path string, l *Limit, name string) {
	if name == "" {
		r.fail(n, path+".name", "must name a limit")
	}
	l.Replaces = append(l.Replaces, name)
}

// refuseDuplicates refuses descriptors of one level that have one key and value.
func (r *reader) refuseDuplicates(list []*Descriptor) {
	r.refuseSeen(list, map[string]bool{})
	for _, d := range list {
		r.refuseDuplicates(d.Descriptors)
	}
}

func (r *reader) refuseSeen(list []*Descriptor, seen map[string]bool) {
	for _, d := range list {
		if seen[d.Name()] {
			r.add(d.Problem(r.file, "the descriptor "+d.Name()+" is given twice: keep one"))
		}
		seen[d.Name()] = true
	}
}

func (r *reader) list(item setter) setter {
	return func(n *policy.Node, path string) {
		if n.Kind != policy.List {
			r.fail(n, path, "must be a list, not "+message.Describe(n))
		}
		for i, one := range n.Items {
			item(one, path+"["+strconv.Itoa(i)+"]")
		}
	}
}

// text reads text, which YAML may take for a number or for true or false.
func (r *reader) text(to *string) setter {
	return func(n *policy.Node, path string) {
		switch {
		case n.Kind == policy.List || n.Kind == policy.Object:
			r.fail(n, path, "must be text, not "+message.Describe(n))
		case strings.ContainsFunc(n.Text, unicode.IsControl):
			r.fail(n, path, "must not hold control characters")
		default:
			*to = n.Text
		}
	}
}

// metadata reads an object of any fields.
func (r *reader) metadata(to **structpb.Struct) setter {
	return func(n *policy.Node, path string) {
		m := &structpb.Struct{}
		err := protojson.Unmarshal(policy.AppendJSON(nil, n), m)
		if err != nil {
			r.fail(n, path, "must be an object, whose fields have different names")
		}
		*to = m
	}
}

func (r *reader) flag(to *bool) setter {
	return func(n *policy.Node, path string) {
		if n.Kind != policy.Bool {
			r.fail(n, path, "must be true or false, not "+message.Describe(n))
		}
		*to = n.Text == "true"
	}
}

func (r *reader) number(to *uint32) setter {
	return func(n *policy.Node, path string) {
		value, err := strconv.ParseUint(n.Text, 10, 32)
		if n.Kind != policy.Number || err != nil {
			r.fail(n, path, "must be a whole number from 0 to 4294967295, not "+message.Describe(n))
		}
		*to = uint32(value)
	}
}

// unitOfTime is a unit of a limit. Its windows begin on the clock: at whole multiples of its length
// since 1970 in UTC, as in the service. So a month is 30 days, a year 365, and a week begins on a
// Thursday.
type unitOfTime struct {
	name    string
	number  rlsv3.RateLimitResponse_RateLimit_Unit
	seconds int64
}

var units = []unitOfTime{
	{"second", rlsv3.RateLimitResponse_RateLimit_SECOND, 1},
	{"minute", rlsv3.RateLimitResponse_RateLimit_MINUTE, 60},
	{"hour", rlsv3.RateLimitResponse_RateLimit_HOUR, 60 * 60},
	{"day", rlsv3.RateLimitResponse_RateLimit_DAY, 24 * 60 * 60},
	{"week", rlsv3.RateLimitResponse_RateLimit_WEEK, 7 * 24 * 60 * 60},
	{"month", rlsv3.RateLimitResponse_RateLimit_MONTH, 30 * 24 * 60 * 60},
	{"year", rlsv3.RateLimitResponse_RateLimit_YEAR, 365 * 24 * 60 * 60},
}

// windows is the window of so many requests in the unit.
func (u *unitOfTime) windows(requests uint32) []limit.Window {
	return []limit.Window{{Algorithm: limit.FixedWindow, Limit: requests, PeriodNs: u.seconds * 1_000_000_000}}
}

func unitNamed(name string) *unitOfTime {
	i := slices.IndexFunc(units, func(u unitOfTime) bool { return u.name == name })
	if i < 0 {
		return nil
	}
	return &units[i]
}

// numberOf is the number of the unit with that name, UNKNOWN if there is none.
func numberOf(name string) rlsv3.RateLimitResponse_RateLimit_Unit {
	if u := unitNamed(name); u != nil {
		return u.number
	}
	return rlsv3.RateLimitResponse_RateLimit_UNKNOWN
}
