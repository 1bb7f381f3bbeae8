package warnings

import (
	"slices"
	"strconv"

	"github.com/sluice-ratelimit/sluice/shared/limit"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// warnAnswers warns of a rule that waits for answers, if some answers are free, or if a client can
// make its answers free.
func (c *collector) warnAnswers(v policy.Place, r *policy.Rule) {
	if !r.Holds() {
		return
	}
	c.warnFree(v.Field("cost"), r)
	s := r.Settle
	if s == nil {
		c.warnHogged(v, r)
		return
	}
	at := v.Field("settle")
	isGiven := at.Member("unknown") != nil
	isSaid := s.To.Tokens() || s.Field != ""
	switch {
	case isGiven && !isSaid:
		c.warn(at.Field("unknown"), "has no effect: what "+string(s.To)+" charges is always known")
	case s.To.Tokens() && s.Unknown == policy.UnknownNothing:
		c.warn(at.Field("unknown"), "an answer that does not say its tokens is free, "+
			"and a client can cause that, such as by a stream without stream_options.include_usage: write estimate")
	}
	if s.To.Tokens() && !s.Identity {
		c.warn(at.Field("identity"), "a compressed answer is not read, "+
			"so a client that asks for one is charged as unknown says: remove it")
	}
	if !s.When.NoAnswer {
		c.warn(at.Field("when").Field("no_answer"), "a client that disconnects before the answer is charged nothing: "+
			"remove it, unless only answered requests should count")
	}
	if s.To.Tokens() {
		c.warnModelless(v.Field("match"), r)
	}
	c.warnForgotten(v, r)
	c.warnPrices(v, r)
}

// warnPrices warns of a price list by which even a short answer costs more than its request holds, and
// of prices that no answer has.
func (c *collector) warnPrices(v policy.Place, r *policy.Rule) {
	s := r.Settle
	if len(s.Prices) == 0 {
		return
	}
	short := min(policy.ThousandTokens(s.Prices), int64(s.Max))
	if held := r.LeastCost(); int64(held) < short {
		c.warn(v.Field("cost"), "a request holds at least "+strconv.FormatUint(uint64(held), 10)+
			", and 1,000 tokens take up to "+strconv.FormatInt(short, 10)+": requests that run at once can exceed "+
			"the limit by what they cost more; set cost, or its min, to what most answers cost")
	}
	prices := v.Field("settle").Field("prices")
	for i := range s.Prices {
		if s.Prices[i].Model.Kind == policy.Any && i+1 < len(s.Prices) {
			c.warnOf(prices.Item(i+1), prices.Item(i), "never counts: "+otherPlace+" comes first and fits every model")
			return
		}
	}
}

// freeCalls are calls of models' APIs that use no model.
var freeCalls = []string{
	"/v1/messages/count_tokens", "/v1/messages/batches", "/v1/batches", "/v1/responses/input_tokens",
	"/v1beta/models/gemini:countTokens",
}

// warnModelless warns of a rule for tokens that charges calls which use no model.
func (c *collector) warnModelless(v policy.Place, r *policy.Rule) {
	if c.appliesTo(r, "GET", "") {
		c.warn(v.Field("methods"), "the rule applies to GET: "+
			"fetching a finished answer returns its usage again, and would be charged again: write methods: [POST]")
	}
	for _, path := range freeCalls {
		if c.appliesTo(r, "POST", path) {
			c.warn(v.Field("paths"), "the rule applies to "+path+", which uses no model and would be charged an estimate: "+
				"list only paths that use a model, such as /v1/messages and /v1/messages/, or exempt this one")
			return
		}
	}
}

// appliesTo reports whether a rule applies to requests of a method and a path, or of some path where
// that is empty.
func (c *collector) appliesTo(r *policy.Rule, method, path string) bool {
	exempts := func(m policy.Match) bool {
		others := m
		others.Methods = nil
		if path != "" {
			others.Paths = nil
		}
		return others.IsEmpty() && c.matchesRequest(&m, method, path)
	}
	isExempt := slices.ContainsFunc(r.Exempt, exempts) || slices.ContainsFunc(c.exempt, exempts)
	return !isExempt && c.matchesRequest(&r.Match, method, path)
}

// matchesRequest reports whether methods and paths of a match are those of a request.
func (c *collector) matchesRequest(m *policy.Match, method, path string) bool {
	return (len(m.Methods) == 0 || slices.Contains(m.Methods, method)) &&
		(len(m.Paths) == 0 || path == "" || c.anyMatches(m.Paths, path))
}

// warnFree warns of costs of 0.
func (c *collector) warnFree(v policy.Place, r *policy.Rule) {
	warn := func(v policy.Place, cost policy.Cost) {
		if cost.Least() == 0 {
			c.warn(v, "a request that costs 0 holds nothing, and its answer is not charged: set min to 1")
		}
	}
	if len(r.Costs) == 0 {
		warn(v, r.Cost)
		return
	}
	for i := range r.Costs {
		warn(v.Item(i).Field("cost"), r.Costs[i].Cost)
	}
	for i := len(r.Costs); i < len(v.Items); i++ { // the entry for all other requests, if there is one
		warn(v.Item(i).Field("cost"), r.Cost)
	}
}

// warnHogged warns of slots that one client may take from all others, once a rule.
func (c *collector) warnHogged(v policy.Place, r *policy.Rule) {
	if c.slotsByClient || tellsClientsApart(r.Key) {
		return
	}
	message := "one client can take every slot, and keep it by never ending its requests: " +
		"add a rule with algorithm concurrency by client_ip, or by something else that tells clients apart"
	if r.MaxHoldNs == 0 {
		message += ", and set max_hold"
	}
	c.warn(v.Field("key"), message)
}

// hasSlotsByClient reports whether some rule limits how many requests of one client run.
func hasSlotsByClient(p *policy.Policy) bool {
	return slices.ContainsFunc(p.Rules, func(r policy.Rule) bool {
		return r.Mode == policy.ModeEnforce && r.Concurrency() && tellsClientsApart(r.Key)
	})
}

func tellsClientsApart(key []policy.KeyPart) bool {
	return slices.ContainsFunc(key, func(p policy.KeyPart) bool {
		if p.Kind == policy.KeyFirstOf {
			return tellsClientsApart(p.Of)
		}
		return p.OfClient()
	})
}

// warnForgotten warns of windows that forgive what answers cost beyond what was held.
func (c *collector) warnForgotten(v policy.Place, r *policy.Rule) {
	if !r.ChargesBeyondHold() {
		return
	}
	cost := r.LeastCost()
	for i, w := range r.Limits {
		if w.Algorithm == limit.SlidingWindowLog || w.Algorithm == limit.SlidingWindowCounter {
			held, algorithm := strconv.FormatUint(uint64(cost), 10), policy.AlgorithmName(w.Algorithm)
			c.warn(v.Field("limits").Item(i), "an answer may cost more than the "+held+" that its request held, "+
				"and a "+algorithm+" forgets what is over its limit as it slides: "+
				"use fixed_window or token_bucket, where it is paid back, or set max in settle to what is held")
		}
	}
}
