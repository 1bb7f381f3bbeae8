package settle

import (
	"strings"

	"github.com/sluice-ratelimit/sluice/filter/internal/metrics"
	"github.com/sluice-ratelimit/sluice/filter/internal/usage"
	"github.com/sluice-ratelimit/sluice/shared/policy"
)

// price is what the tokens of an answer cost, by the policy's prices:
//
//	the answer says             units
//	input and output            their price
//	only their total            the price of an estimate how they divide, and no less than what was held
//	less, and "unknown" is not  what "unknown" says: nothing, or what was held
//	to estimate
//	less otherwise, or there    the price of an estimate, and no less than what was held
//	is no answer
func price(p *policy.Settle, held uint32, x Exchange) (units int64, by metrics.By, priced policy.Tokens) {
	u := usageOf(x)
	isKnown := u.InputKnown && u.OutputKnown
	if !isKnown && u.Total == 0 && p.Unknown != policy.UnknownEstimate && x.Status() != 0 {
		units, by = unknown(p, held)
		return units, by, priced
	}
	priced = classes(&u, x.RequestBytes)
	units = policy.PriceOf(p.Prices, modelOf(&u, x), priced)
	if isKnown {
		return units, metrics.ByAnswer, priced
	}
	return max(units, int64(held)), metrics.ByEstimate, priced
}

// classes divides the tokens of an answer by what they cost. If they are not all known, they are
// estimated. Of an answer that says only its total, what is beyond the request's estimate is output.
func classes(u *usage.Usage, requestBytes func() int64) (t policy.Tokens) {
	input, output := u.Input, u.Output
	if !u.InputKnown || !u.OutputKnown {
		input, output = u.Estimate(requestBytes())
	}
	if u.Total > 0 {
		output = min(output, u.Total)
		input = u.Total - output
	}
	t.Cached = min(u.CacheRead, input)
	t.CacheWrite = min(u.CacheWritten, input-t.Cached)
	t.Input, t.Output = input-t.Cached-t.CacheWrite, output
	return t
}

// modelOf is the model that answered, "" if it is not known. Bedrock's own answers do not name it, but
// its path does: /model/ID/converse, converse-stream, invoke, invoke-with-response-stream. The client
// chooses the path, so it never counts for an answer of another API.
func modelOf(u *usage.Usage, x Exchange) string {
	if u.Model != "" || x.Status() != 0 && !u.IsBedrock {
		return u.Model
	}
	path, _, _ := strings.Cut(x.Path(), "?")
	path, operation := cutLast(path)
	before, id := cutLast(path)
	_, parent := cutLast(before)
	switch operation {
	case "converse", "converse-stream", "invoke", "invoke-with-response-stream":
		if parent == "model" && id != "" {
			return policy.Unescape(id)
		}
	}
	return ""
}

// cutLast cuts the last segment off a path.
func cutLast(path string) (before, segment string) {
	at := strings.LastIndexByte(path, '/')
	return path[:max(at, 0)], path[at+1:]
}
