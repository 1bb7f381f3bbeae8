package access

import (
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// MaxNodeID is longer than any id in use and short enough for a store's key. A
// longer SAN is passed over.
const MaxNodeID = 1024

// CheckNodeID says whether a node id is fit to be shown and compared: visible
// ASCII has neither control characters nor letters that only look alike.
func CheckNodeID(id string) error {
	switch {
	case id == "":
		return errors.New("node id is empty: set node.id in the bootstrap or start Envoy with --service-node")
	case len(id) > MaxNodeID:
		return fmt.Errorf("node id has %d bytes, at most %d are allowed", len(id), MaxNodeID)
	case !isVisible(id):
		return fmt.Errorf("node id %.100q has other characters than visible ASCII, ! to ~", id)
	}
	return nil
}

func isVisible(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// NodeIDs grant node ids to certificates. The zero NodeIDs grant only the ids that
// are names of the certificate itself.
type NodeIDs struct{ grants []grant }

// grant is a line of the file: certificates with that SAN may use that id.
type grant struct{ san, id pattern }

// SAN returns the name in the certificate for which it may use the node id. The
// error says which ids it may use.
func (n *NodeIDs) SAN(cert *x509.Certificate, id string) (string, error) {
	sans := proxyNames(cert)
	if slices.Contains(sans, id) {
		return id, nil
	}
	name, others := n.granted(sans, id)
	switch {
	case name != "":
		return name, nil
	case len(sans) == 0:
		return "", fmt.Errorf("node id %q is not in its certificate, which has no DNS or URI name without a wildcard: "+
			"issue one with the SAN %q", id, id)
	}
	return "", fmt.Errorf(`node id %q is not granted by its certificate, which grants %s: `+
		`set node.id to that, or write "%s %s" into the file of serve --node-names`,
		id, orList(append(others, sans...)), sans[0], id)
}

// granted returns the first name for which a line grants the id, or else the ids that lines grant.
func (n *NodeIDs) granted(sans []string, id string) (name string, others []string) {
	for _, g := range n.grants {
		for _, name := range sans {
			if captured, ok := g.san.match(name); ok {
				if same, ok := g.id.match(id); ok && same == captured {
					return name, nil
				}
				others = append(others, strings.ReplaceAll(g.id.text, capture, captured))
			}
		}
	}
	return "", others
}

// Domain returns nil if a line grants the certificate the domain, so that it may ask for units of it.
// Otherwise the error says why not. In a line the domain stands where a node id does.
func (n *NodeIDs) Domain(cert *x509.Certificate, domain string) error {
	sans := proxyNames(cert)
	if name, _ := n.granted(sans, domain); name != "" {
		return nil
	}
	if len(sans) == 0 {
		return errors.New("the proxy's certificate has no DNS or URI name without a wildcard")
	}
	return fmt.Errorf(`no line grants it to the proxy's certificate: write "%s %s" into the file of --quota-domains`,
		sans[0], domain)
}

// maxListed bounds what an error lists.
const maxListed = 5

func orList(ids []string) string {
	slices.Sort(ids)
	ids = slices.Compact(ids)
	more := ""
	if len(ids) > maxListed {
		more = fmt.Sprintf(" or one of %d others", len(ids)-maxListed)
		ids = ids[:maxListed]
	}
	return strings.Join(ids, " or ") + more
}

// maxLines bounds the file: every stream is compared with every line.
const maxLines = 10_000

// ParseNodeIDs reads lines of the form
//
//	SAN ID
//
// where * and {id} stand for one or more characters of a segment (see pattern),
// and {id} for the same ones on both sides; see eachLine for what else a
// line may have. Errors name the file.
func ParseNodeIDs(file string, text []byte) (*NodeIDs, error) {
	n := &NodeIDs{}
	err := eachLine(file, text, maxListed, func(_ int, words []string) error {
		g, err := parseGrant(words)
		n.grants = append(n.grants, g)
		return err
	})
	if err == nil && len(n.grants) > maxLines {
		err = fmt.Errorf("%s: %d lines, at most %d are allowed: let * or {id} stand for what differs",
			file, len(n.grants), maxLines)
	}
	if err != nil {
		return nil, err
	}
	return n, nil
}

func parseGrant(words []string) (g grant, err error) {
	if len(words) != 2 {
		return grant{}, fmt.Errorf("%d words instead of 2: write SAN ID, for example {id}.edge.corp {id}", len(words))
	}
	g.san, err = grantPattern(words[0], namePattern)
	if err != nil {
		return grant{}, fmt.Errorf("SAN %q: %w", words[0], err)
	}
	g.id, err = grantPattern(words[1], idPattern)
	if err != nil {
		return grant{}, fmt.Errorf("id %q: %w", words[1], err)
	}
	if g.san.captures != g.id.captures {
		return grant{}, errors.New("{id} is on one side only: write it on both, or * where any text will do")
	}
	return g, nil
}

// grantPattern reads a side of a line, and refuses one that can match nothing.
func grantPattern(text string, parse func(string) (pattern, error)) (pattern, error) {
	switch {
	case len(text) > MaxNodeID:
		return pattern{}, fmt.Errorf("%d bytes, at most %d are allowed", len(text), MaxNodeID)
	case !isVisible(text):
		return pattern{}, errors.New("only visible ASCII, ! to ~, can match")
	case strings.ContainsAny(strings.ReplaceAll(text, capture, ""), "{}"):
		return pattern{}, errors.New("the only word in braces is {id}")
	}
	return parse(text)
}

// capture matches like *, and match returns the text that it stands for.
const capture = "{id}"

// pattern is a text in which * and {id} stand for one or more characters of a
// segment. A segment of a DNS name ends at ".", one of a URI at "/", one of a
// node id at both.
type pattern struct {
	text       string
	captures   bool   // {id} is in it
	separators string // empty: any text may match, else names of one kind
	regexp     *regexp.Regexp
}

// namePattern makes a pattern of names in certificates: of DNS names, or of
// URIs if there is a ":" in it.
func namePattern(text string) (pattern, error) {
	_, rest, _ := strings.Cut(text, "://")
	host, _, _ := strings.Cut(rest, "/")
	for _, wild := range []string{"*", capture} {
		if strings.Contains(host, wild) {
			return pattern{}, errors.New(wild + " in the host of a URI: it may stand within a segment of the path only")
		}
	}
	p, err := compile(text, separators(text))
	p.separators = separators(text)
	return p, err
}

// idPattern makes a pattern of node ids.
func idPattern(text string) (pattern, error) { return compile(text, "./") }

func separators(name string) string {
	if strings.Contains(name, ":") { // which no DNS name has
		return "/"
	}
	return "."
}

func compile(text, separators string) (pattern, error) {
	p := pattern{text: text, captures: strings.Contains(text, capture)}
	if strings.Count(text, capture) > 1 {
		return p, errors.New("{id} is there twice: write * where the text may differ")
	}
	for segment := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(separators, r) }) {
		switch stars := strings.Count(segment, "*"); {
		case stars > 0 && strings.Contains(segment, capture):
			return p, fmt.Errorf("{id} and * are in one segment, so what {id} stands for is not clear: separate them by %q",
				separators[:1])
		case stars > 1:
			return p, errors.New("two * in one segment: one is enough")
		}
	}
	inSegment := "[^" + separators + "]+"
	wild := strings.NewReplacer(`\*`, inSegment, regexp.QuoteMeta(capture), "("+inSegment+")")
	var err error
	p.regexp, err = regexp.Compile("^" + wild.Replace(regexp.QuoteMeta(text)) + "$")
	return p, err
}

// match says whether the text fits, and what {id} stands for in it.
func (p pattern) match(text string) (captured string, ok bool) {
	if p.separators != "" && p.separators != separators(text) {
		return "", false
	}
	found := p.regexp.FindStringSubmatch(text)
	switch {
	case found == nil:
		return "", false
	case p.captures:
		return found[1], true
	}
	return "", true
}
