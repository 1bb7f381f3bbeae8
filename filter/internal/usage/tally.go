package usage

// maxCount is the largest valid count: larger numbers are inexact in JSON.
const maxCount = 1 << 53

// A tally has a bit for each part of each api. All but one of its 64 bits are in use: one more api or part
// needs two numbers of 64 bits.
var _ [64 - int(apis)*int(parts)]struct{}

// tally adds up what the rows have found.
type tally struct {
	counts  [apis * api(parts)]int64
	said    uint64 // a bit for each count that was read
	doubted uint64 // and for each whose last value was not a count, or was in a broken event
	ofEvent uint64 // and for each that this event has

	textEvents, textBytes int64
	spoken, other, again  int64 // text of this event; again is what repeats earlier events
	repeated              int64 // the most text of an event that repeats others
	isNumbered            bool  // the events have numbers, so all kinds but deltas repeat others
	isOfAPI               bool  // the answer has something in a place where an API has it
	hasSpoken             bool  // it has text in such a place
	namesOutput           bool  // it has the name of an output count, even if not a count
}

// beginEvent separates what follows from the event before.
func (t *tally) beginEvent() {
	t.ofEvent = 0
	t.spoken, t.other = 0, 0
	t.again = 0
}

// doubt takes back the certainty of what the present event said.
func (t *tally) doubt() { t.doubted |= t.ofEvent }

// count takes a row's number. One that is noCount leaves the last in doubt.
func (t *tally) count(r *row, n int64) {
	at := r.api*api(parts) + api(r.part)
	bit := uint64(1) << at
	t.namesOutput = t.namesOutput || outputParts>>r.part&1 != 0
	if n < 0 || n > maxCount {
		t.doubted |= bit
		return
	}
	if n == 0 && t.counts[at] > 0 {
		return // some servers say the count first, and 0 at the end of the stream
	}
	t.counts[at] = n
	t.said |= bit
	t.ofEvent |= bit
	t.doubted &^= bit
}

// addText takes the next n bytes of text. An event may have the same text twice: where its API has
// text, and elsewhere. So the larger of the two sizes counts.
func (t *tally) addText(k kind, n int) {
	if n == 0 {
		return
	}
	before := max(t.spoken, t.other)
	switch {
	case k != kindOther:
		t.spoken += int64(n)
		t.hasSpoken = true
	case t.isNumbered:
		t.again += int64(n)
		t.repeated = max(t.repeated, t.again)
		return
	default:
		t.other += int64(n)
	}
	if before == 0 {
		t.textEvents++
	}
	t.textBytes += max(t.spoken, t.other) - before
}

// sum adds up the parts of the first API that has them, or else of the API with the largest sum, and
// returns which API that is. Some fronts write the names of several APIs and fill only those of one,
// so a 0 of one API does not hide the count of another.
func (t *tally) sum(of uint64) (sum int64, by api, isKnown bool) {
	for a := range apis {
		var n int64
		for p := range parts {
			if of>>p&1 != 0 {
				n += t.counts[a*api(parts)+api(p)]
			}
		}
		if bits := of << (a * api(parts)); t.said&bits != 0 && t.doubted&bits == 0 {
			if n > 0 {
				return n, a, true
			}
			isKnown = true
		}
		if n > sum {
			sum, by = n, a
		}
	}
	return sum, by, isKnown && sum == 0
}

// classify tells what of an API's input was read from a cache and what was written to it. A count in
// doubt is none, so its tokens have no discount.
func (t *tally) classify(u *Usage, by api) {
	certain := func(p part) int64 {
		at := by*api(parts) + api(p)
		if t.doubted>>at&1 != 0 {
			return 0
		}
		return t.counts[at]
	}
	u.CacheRead = min(certain(cacheRead)+certain(cached), u.Input)
	u.CacheWritten = min(certain(cacheWritten), u.Input-u.CacheRead)
}

// usage returns the sums of all counts. An answer in one piece is complete. What servers are known to say
// decides, in this order, how the sums are read.
func (t *tally) usage(inOnePiece bool) Usage {
	u := Usage{TextEvents: t.textEvents, TextBytes: max(t.textBytes, t.repeated), IsBedrock: t.said&bedrockCounts != 0}
	if t.repeated > 0 {
		u.TextEvents = max(u.TextEvents, 1)
	}
	var by api
	u.Input, by, u.InputKnown = t.sum(inputParts)
	u.Output, _, u.OutputKnown = t.sum(outputParts)
	t.classify(&u, by) // what only a total tells of the input is in no class
	all, _, allKnown := t.sum(1 << total)
	// Text, and every count 0: servers that do not count.
	if u.TextEvents > 0 && u.Input+u.Output+all == 0 {
		u.InputKnown, u.OutputKnown = false, false
		return u
	}
	// The same for the output alone.
	if t.hasSpoken && u.Output == 0 {
		u.OutputKnown = false
	}
	// Anthropic begins with the output so far: at least so much, if its end does not come.
	if !u.OutputKnown {
		begun, _, _ := t.sum(1 << begunOutput)
		u.Output = max(u.Output, begun)
	}
	// Embeddings and rankings have no output. Some say the input alone, others only the total.
	hasNoOutput := inOnePiece && !t.hasSpoken
	if allKnown {
		u.addTotal(all, hasNoOutput)
	}
	if hasNoOutput && !t.namesOutput && (allKnown || u.TextEvents == 0) {
		u.OutputKnown = u.InputKnown
	}
	return u
}

// addTotal completes the parts by a total. What the total has beyond them is output: some APIs count
// reasoning only in the total. If the answer hasNoOutput and no part is known, all of it is input.
func (u *Usage) addTotal(all int64, hasNoOutput bool) {
	switch {
	case u.InputKnown && all > u.Input:
		u.Output = max(u.Output, all-u.Input)
		u.OutputKnown = true
	case u.InputKnown:
	case u.OutputKnown && all > u.Output:
		u.Input = max(u.Input, all-u.Output)
		u.InputKnown = true
	case u.OutputKnown:
	case hasNoOutput:
		u.Input, u.InputKnown = all, true
	default:
		u.Total = all
	}
}
