package importer

import (
	"fmt"
	"slices"
	"strings"
)

// tree is a level of envoyproxy/ratelimit's configuration.
type tree struct {
	key, value string
	path       string // "message_type_marketing.to_number"
	quota      *quota
	share      bool
	place      place
	children   []*tree
	of         map[pair]*tree     // the children
	byKey      map[string][]*tree // the same
	reached    bool               // a descriptor leads to it
	limit      theirLimit
}

type pair struct{ key, value string }

// add adds a child, unless there is one of its key and value.
func (t *tree) add(c *tree) bool {
	at := pair{c.key, c.value}
	if t.of[at] != nil {
		return false
	}
	if t.of == nil {
		t.of, t.byKey = map[pair]*tree{}, map[string][]*tree{}
	}
	t.children, t.of[at], t.byKey[c.key] = append(t.children, c), c, append(t.byKey[c.key], c)
	return true
}

func (t *tree) isWildcard() bool { return strings.Contains(t.value, "*") }

// pattern says for which values the level is.
func (t *tree) pattern() pattern {
	switch {
	case t.value == "":
		return pattern{}
	case t.isWildcard():
		return pattern{wildcard, t.value}
	}
	return pattern{exactly, t.value}
}

// name is the level's name in envoyproxy/ratelimit.
func (t tree) name() string {
	if t.value == "" {
		return t.key
	}
	return t.key + "_" + t.value
}

// child is the level for an entry: the one with exactly its value, else the
// first whose wildcard fits, else the one for every value. As in the service
// there is no way back from it if no level below it fits.
func (t *tree) child(key, value string) *tree {
	if c := t.of[pair{key, value}]; c != nil && value != "" {
		return c
	}
	for _, c := range t.byKey[key] {
		if c.isWildcard() && c.pattern().matches(value) {
			return c
		}
	}
	return t.of[pair{key, ""}]
}

// cells lists the cases of a descriptor in the order in which child chooses.
func (t *tree) cells(entries []entry) []cell {
	if len(entries) == 0 {
		c := cell{name: t.path, place: t.place}
		if t.reached = true; t.quota.limits() {
			c.quota = t.quota
		}
		return []cell{c}
	}
	e, rest := entries[0], entries[1:]
	if e.part == nil {
		if c := t.child(e.key, e.value); c != nil {
			return c.cells(rest)
		}
		return []cell{nothing(entries)}
	}
	var list []cell
	for _, kind := range []patternKind{exactly, wildcard, anyValue} {
		for _, c := range t.byKey[e.key] {
			v := c.pattern()
			if v.kind != kind {
				continue
			}
			for _, below := range c.cells(rest) {
				below.patterns = slices.Insert(below.patterns, 0, v)
				below.shared = slices.Insert(below.shared, 0, c.share)
				list = append(list, below)
			}
		}
	}
	if t.of[pair{e.key, ""}] == nil {
		list = append(list, nothing(entries))
	}
	return list
}

// nothing is the cell of all other requests, which have no limit.
func nothing(entries []entry) cell {
	var c cell
	for _, e := range entries {
		if e.part != nil {
			c.patterns, c.shared = append(c.patterns, pattern{}), append(c.shared, false)
		}
	}
	return c
}

// theirFile is a file of envoyproxy/ratelimit.
type theirFile struct {
	Domain      string             `yaml:"domain"`
	Descriptors []*theirDescriptor `yaml:"descriptors"`
}

type theirDescriptor struct {
	Key            string             `yaml:"key"`
	Value          string             `yaml:"value"`
	RateLimit      *theirLimit        `yaml:"rate_limit"`
	Descriptors    []*theirDescriptor `yaml:"descriptors"`
	ShadowMode     bool               `yaml:"shadow_mode"`
	QuotaMode      bool               `yaml:"quota_mode"`
	ShareThreshold bool               `yaml:"share_threshold"`
	DetailedMetric any                `yaml:"detailed_metric" note:"metrics have the rule's name, and no values of keys"`
	ValueToMetric  any                `yaml:"value_to_metric" note:"metrics have the rule's name, and no values of keys"`
	Metadata       any                `yaml:"metadata" note:"a limit has no metadata here"`
}

type theirLimit struct {
	Unit            string           `yaml:"unit"`
	RequestsPerUnit uint32           `yaml:"requests_per_unit"`
	Unlimited       bool             `yaml:"unlimited"`
	Name            string           `yaml:"name"`
	Replaces        []*theirReplaced `yaml:"replaces"`
}

type theirReplaced struct {
	Name string `yaml:"name"`
}

// units are their units of time, which are those of a policy too, with the lengths of buckets.
var units = map[string]string{"second": "1s", "minute": "1m", "hour": "1h", "day": "1d", "week": "7d", "month": "30d", "year": "365d"}

// noteCalendar says of units that have fixed lengths there how they differ.
func (in *source) noteCalendar(unit string) {
	if unit == "month" || unit == "year" {
		in.notes.add(place{}, "envoyproxy/ratelimit has months of 30 days, unless it is set to calendar months, and years of 365. "+
			"Here months and years are the calendar's, in UTC. For fixed lengths write 30d and 365d.")
	}
}

// addAll adds descriptors; those of several files of a domain come together.
func (t *tree) addAll(in *source, list []*theirDescriptor) {
	for _, d := range list {
		c := &tree{key: d.Key, value: d.Value, share: d.ShareThreshold, place: in.at(d, "")}
		c.path = strings.TrimPrefix(t.path+"."+c.name(), ".")
		if c.key == "" {
			in.failField(d, "key", "a descriptor needs a key")
		}
		if strings.Contains(c.key, "*") {
			in.note(d, "key", "the key "+c.key+" is taken literally: only values have wildcards")
		}
		if !t.add(c) {
			in.failField(d, "", "the descriptor "+c.path+" is given twice, which envoyproxy/ratelimit refuses: keep one")
			continue
		}
		if c.share && !c.isWildcard() {
			in.failField(d, "share_threshold", "needs a value with a *")
		}
		c.addQuota(in, d)
		c.addAll(in, d.Descriptors)
	}
}

func (t *tree) addQuota(in *source, d *theirDescriptor) {
	limit := d.RateLimit
	if limit == nil {
		if d.ShadowMode || d.QuotaMode {
			in.notes.add(in.at(d, ""), t.path+" has a mode and no rate_limit: the import made nothing of the mode")
		}
		return
	}
	t.place, t.limit = in.at(limit, ""), *limit
	unit := strings.ToLower(limit.Unit)
	_, known := units[unit]
	switch {
	case limit.Unlimited && known:
		in.failField(limit, "unit", "does not go with unlimited: keep one of the two")
	case limit.Unlimited:
		t.quota = &quota{unlimited: true, place: t.place}
	case !known:
		in.failField(limit, "unit", fmt.Sprintf("must be second, minute, hour, day, week, month or year, not %q", limit.Unit))
	default:
		t.quota = &quota{numbers: numbers{requests: uint64(limit.RequestsPerUnit), per: unit}, shadow: d.ShadowMode || d.QuotaMode, place: t.place}
		in.noteCalendar(unit)
		if d.QuotaMode {
			t.quota.notes = append(t.quota.notes, "quota_mode denies a request only when all its descriptors in that mode "+
				"are over their limits. A rule denies alone, so it is shadow. If a request has only one such descriptor, "+
				"remove mode.")
		}
	}
	for _, r := range limit.Replaces {
		switch r.Name {
		case "":
			in.failField(r, "name", "must name a limit")
		case limit.Name:
			in.failField(r, "name", "a limit cannot replace itself")
		}
	}
}

// all are the levels below one.
func (t *tree) all() (list []*tree) {
	for _, c := range t.children {
		list = append(append(list, c), c.all()...)
	}
	return list
}

// replace switches limits off that others replace: a request that counts in both
// counts there in the other alone.
func (t *tree) replace() {
	by, all := map[string]*tree{}, t.all()
	for _, c := range all {
		for _, r := range c.limit.Replaces {
			by[r.Name] = c
		}
	}
	for _, c := range all {
		if by[c.limit.Name] == nil || !c.quota.limits() {
			continue
		}
		why := &c.quota.unknown
		if c.quota.shadow {
			why = &c.quota.notes // it denies nobody
		}
		*why = append(*why, by[c.limit.Name].path+" replaces this limit: a request with both counts there in that alone. Give the rule "+
			"an exempt with what makes the other apply.")
	}
}
