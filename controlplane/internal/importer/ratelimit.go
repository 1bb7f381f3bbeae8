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
	of         map[string]*siblings // the children by key
}

// siblings are the levels of one key below another.
type siblings struct {
	all       []*tree
	byValue   map[string]*tree
	wildcards []*tree
}

// add adds a child, unless there is one of its key and value.
func (t *tree) add(c *tree) bool {
	s := t.of[c.key]
	if s == nil {
		s = &siblings{byValue: map[string]*tree{}}
		if t.of == nil {
			t.of = map[string]*siblings{}
		}
		t.of[c.key] = s
	}
	if s.byValue[c.value] != nil {
		return false
	}
	t.children, s.all, s.byValue[c.value] = append(t.children, c), append(s.all, c), c
	if c.isWildcard() {
		s.wildcards = append(s.wildcards, c)
	}
	return true
}

// withKey are the children of a key.
func (t *tree) withKey(key string) *siblings {
	if s := t.of[key]; s != nil {
		return s
	}
	return &siblings{}
}

func (t *tree) isWildcard() bool { return strings.Contains(t.value, "*") }

// name is how envoyproxy/ratelimit names the level.
func (t tree) name() string {
	if t.value == "" {
		return t.key
	}
	return t.key + "_" + t.value
}

// child is the level for an entry: that of exactly its value, else the first
// whose wildcard fits, else the one for every value. There is no way back from
// it: if its levels below have no match, there is none.
func (t *tree) child(key, value string) *tree {
	s := t.withKey(key)
	if c := s.byValue[value]; c != nil && value != "" {
		return c
	}
	for _, c := range s.wildcards {
		if (pattern{wildcard, c.value}).matches(value) {
			return c
		}
	}
	return s.byValue[""]
}

// cells lists the cases of a descriptor, so that the first that fits is the
// one that child leads to.
func (t *tree) cells(entries []entry) []cell {
	if len(entries) == 0 {
		c := cell{name: t.path, place: t.place}
		if t.quota != nil && !t.quota.unlimited {
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
	add := func(c *tree, v pattern) {
		for _, below := range c.cells(rest) {
			below.patterns = slices.Insert(below.patterns, 0, v)
			below.shared = slices.Insert(below.shared, 0, c.share)
			list = append(list, below)
		}
	}
	s := t.withKey(e.key)
	for _, c := range s.all {
		if c.value != "" && !c.isWildcard() {
			add(c, pattern{exactly, c.value})
		}
	}
	for _, c := range s.wildcards {
		add(c, pattern{wildcard, c.value})
	}
	every := s.byValue[""]
	if every == nil {
		return append(list, nothing(entries))
	}
	add(every, pattern{})
	return list
}

// nothing is the case of all other requests, which have no limit.
func nothing(entries []entry) cell {
	var c cell
	for _, e := range entries {
		if e.part != nil {
			c.patterns, c.shared = append(c.patterns, pattern{}), append(c.shared, false)
		}
	}
	return c
}

// sequences lists the keys of all descriptors that have a limit, in the order
// of the file.
func (t *tree) sequences() [][]string {
	var list [][]string
	known := map[string]bool{}
	for _, c := range t.children {
		var own [][]string
		if c.quota != nil && !c.quota.unlimited {
			own = append(own, []string{c.key})
		}
		for _, below := range c.sequences() {
			own = append(own, append([]string{c.key}, below...))
		}
		for _, s := range own {
			if name := strings.Join(s, "\x00"); !known[name] { // no key holds a control character
				known[name] = true
				list = append(list, s)
			}
		}
	}
	return list
}

// values lists the values that the configuration knows for the last of keys,
// where the keys before have any.
func (t *tree) values(keys []string) []string {
	var list []string
	known := map[string]bool{}
	for _, c := range t.withKey(keys[0]).all {
		more := []string{c.value}
		if len(keys) > 1 {
			more = c.values(keys[1:])
		}
		for _, v := range more {
			if !known[v] {
				known[v] = true
				list = append(list, v)
			}
		}
	}
	return list
}

var unitPeriods = map[string]string{
	"second": "second", "minute": "minute", "hour": "hour", "day": "day", "week": "week",
	"month": "30d", "year": "365d", // fixed lengths there too
}

// readTree reads descriptors; those of several files of a domain come together.
func (t *tree) readTree(list []*object) {
	for _, o := range list {
		c := &tree{key: o.text("key"), value: o.text("value"), share: o.boolean("share_threshold", false), place: o.place}
		c.path = strings.TrimPrefix(t.path+"."+c.name(), ".")
		if c.key == "" {
			o.fail("key", "a descriptor needs a key")
		}
		if strings.Contains(c.key, "*") {
			o.note("key", "the key "+c.key+" is taken literally: only values have wildcards")
		}
		if !t.add(c) {
			o.in.fail(o.node, strings.TrimSuffix(o.path, "."), "the descriptor "+c.path+" is given twice, which envoyproxy/ratelimit refuses: keep one")
			continue
		}
		if c.share && !c.isWildcard() {
			o.fail("share_threshold", "needs a value with a *")
		}
		o.without("metrics here have the rule's name, and no values of keys", "detailed_metric", "value_to_metric")
		o.without("nothing here takes metadata of a limit along", "metadata")
		c.readQuota(o)
		c.readTree(o.children("descriptors"))
	}
}

func (t *tree) readQuota(o *object) {
	shadow, quotaMode := o.boolean("shadow_mode", false), o.boolean("quota_mode", false)
	limit := o.child("rate_limit")
	if limit == nil {
		if shadow || quotaMode {
			o.in.notes.add(o.place, t.path+" has a mode and no rate_limit: nothing was made of the mode")
		}
		return
	}
	unit := strings.ToLower(limit.text("unit"))
	requests := limit.integer("requests_per_unit", 0)
	per, known := unitPeriods[unit]
	name := limit.text("name")
	t.place = limit.place
	switch unlimited := limit.boolean("unlimited", false); {
	case unlimited && known:
		limit.fail("unit", "does not go with unlimited: keep one of the two")
	case unlimited:
		t.quota = &quota{unlimited: true, place: limit.place}
	case !known:
		limit.fail("unit", fmt.Sprintf("must be second, minute, hour, day, week, month or year, not %q", unit))
	default:
		t.quota = &quota{requests: requests, per: per, shadow: shadow || quotaMode, place: limit.place}
		if quotaMode {
			t.quota.notes = append(t.quota.notes, "quota_mode denies a request only when all its descriptors in that mode are over their limits. A rule denies alone, so it is shadow: if a request has but one such descriptor, remove mode.")
		}
	}
	t.readReplaces(limit, name)
}

func (t *tree) readReplaces(limit *object, name string) {
	for _, r := range limit.children("replaces") {
		replaced := r.text("name")
		switch replaced {
		case "":
			r.fail("name", "must name a limit")
		case name:
			r.fail("name", "a limit cannot replace itself")
		default:
			limit.note("replaces", t.path+" replaces the limit named "+replaced+": a request with both would count only in "+t.path+". Here it counts in both: give the rule of "+replaced+" an exempt with what makes "+t.path+" apply.")
		}
	}
}
