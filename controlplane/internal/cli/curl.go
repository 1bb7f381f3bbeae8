package cli

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// assumedCurl is the user agent of curl where no option sets another.
const assumedCurl = "curl/8"

// curlOption is one of curl's options: what it does to the request, and whether
// it takes a value. One without effect says how to get or show the response.
type curlOption struct {
	names  string // separated by spaces
	valued bool
	set    func(c *curl, value string) error
}

var curlOptions = []curlOption{
	{"-X --request", true, func(c *curl, v string) error { c.method = v; return nil }},
	{"-H --header", true, (*curl).header},
	{"-d --data --data-ascii --data-raw --data-binary", true, func(c *curl, v string) error { return c.body(v, strings.HasPrefix(v, "@")) }},
	{"--data-urlencode", true, (*curl).urlencoded},
	{"--json", true, func(c *curl, v string) error {
		c.implied["content-type"], c.implied["accept"] = "application/json", "application/json"
		return c.body(v, strings.HasPrefix(v, "@"))
	}},
	{"-F --form --form-string", true, func(c *curl, _ string) error {
		c.implied["content-type"] = "multipart/form-data"
		return c.body("", true)
	}},
	{"-T --upload-file", true, func(c *curl, _ string) error { c.upload = true; return nil }},
	{"-I --head", false, func(c *curl, _ string) error { c.head = true; return nil }},
	{"-G --get", false, func(c *curl, _ string) error { c.get = true; return nil }},
	{"-A --user-agent", true, func(c *curl, v string) error { c.implied["user-agent"] = v; return nil }},
	{"-e --referer", true, func(c *curl, v string) error { c.implied["referer"] = v; return nil }},
	{"-b --cookie", true, func(c *curl, v string) error {
		if !strings.Contains(v, "=") {
			return errors.New("takes cookies here, as in -b 'name=value', and no file of them")
		}
		c.implied["cookie"] = v
		return nil
	}},
	{"-u --user", true, func(c *curl, v string) error { c.basic(v); return nil }},
	{"--oauth2-bearer", true, func(c *curl, v string) error { c.implied["authorization"] = "Bearer " + v; return nil }},
	{"--url", true, (*curl).address},
	{"--compressed", false, func(c *curl, _ string) error { c.implied["accept-encoding"] = "deflate, gzip, br, zstd"; return nil }},
	{"--path-as-is", false, func(c *curl, _ string) error { c.asIs = true; return nil }},
	{"-k --insecure -s --silent -S --show-error -v --verbose -i --include -L --location -f --fail --fail-with-body " +
		"-N --no-buffer -g --globoff -4 --ipv4 -6 --ipv6 -O --remote-name -J --remote-header-name -# --progress-bar " +
		"-0 --http1.0 --http1.1 --http2 --http2-prior-knowledge --http3 --no-progress-meter --tr-encoding", false, nil},
	{"-o --output -m --max-time --connect-timeout -w --write-out --cacert --capath -E --cert --key --resolve --connect-to " +
		"-x --proxy --retry --retry-delay --retry-max-time --max-redirs -c --cookie-jar -D --dump-header --interface --limit-rate " +
		"--stderr --trace --trace-ascii --unix-socket", true, nil},
}

// curl is a curl command line being read. No error repeats a value: there are
// credentials among them.
type curl struct {
	method             string
	url                *url.URL
	head, get, upload  bool
	asIs               bool
	data               []string
	hasData, dataKnown bool
	implied            map[string]string // headers that options other than -H make
	given              []headerLine      // by -H
}

// headerLine is one -H; a removed one takes away what curl itself would send.
type headerLine struct {
	name, value string
	removed     bool
}

const curlHint = "sluice explain knows curl's options about the request, such as -X -H -d -I -A -b -e -u -G"

// parseCurl reads the arguments of a curl command line, with or without the
// word curl before them.
func parseCurl(args []string) (*simulate.Request, error) {
	if len(args) > 0 && args[0] == "curl" {
		args = args[1:]
	}
	if len(args) > 0 && (args[0] == "wget" || args[0] == "http" || args[0] == "https" || args[0] == "grpcurl") {
		return nil, usageError(fmt.Errorf("%s is not curl", args[0]), "describe the request by a curl command line, or by --method, --host, --path and --header")
	}
	c := &curl{dataKnown: true, implied: map[string]string{"accept": "*/*", "user-agent": assumedCurl}}
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		var err error
		switch {
		case strings.HasPrefix(arg, "--") && len(arg) > 2:
			args, err = c.option(arg, args)
		case strings.HasPrefix(arg, "-") && len(arg) > 1:
			args, err = c.cluster(arg[1:], args)
		default:
			if err = c.address(arg); err != nil {
				err = fmt.Errorf("curl: %w", err)
			}
		}
		if err != nil {
			return nil, usageError(err, curlHint)
		}
	}
	if c.url == nil {
		return nil, usageError(errors.New("curl: there is no URL"), "paste the whole command: sluice explain -f policy.yaml -- curl https://api.example.com/")
	}
	r, err := c.request()
	if err != nil {
		return nil, usageError(err, curlHint)
	}
	return r, nil
}

// option reads one option, which may take its value from the rest.
func (c *curl) option(name string, rest []string) ([]string, error) {
	for _, o := range curlOptions {
		if !strings.Contains(" "+o.names+" ", " "+name+" ") {
			continue
		}
		value := ""
		if o.valued {
			if len(rest) == 0 {
				return nil, fmt.Errorf("curl option %s lacks its value", name)
			}
			value, rest = rest[0], rest[1:]
		}
		if o.set == nil {
			return rest, nil
		}
		if err := o.set(c, value); err != nil {
			return nil, fmt.Errorf("curl option %s: %w", name, err)
		}
		return rest, nil
	}
	name, _, _ = strings.Cut(name, "=")
	return nil, fmt.Errorf("unknown curl option %s", name)
}

// cluster reads short options in one word, as in -sXPOST.
func (c *curl) cluster(letters string, rest []string) ([]string, error) {
	for i := range len(letters) {
		name := "-" + letters[i:i+1]
		valued := false
		for _, o := range curlOptions {
			valued = valued || o.valued && strings.Contains(" "+o.names+" ", " "+name+" ")
		}
		if valued && i+1 < len(letters) {
			_, err := c.option(name, []string{letters[i+1:]})
			return rest, err
		}
		var err error
		if rest, err = c.option(name, rest); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

func (c *curl) address(text string) error {
	if c.url != nil {
		return errors.New("there are two URLs: explain takes one request")
	}
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("the URL is none of http or https")
	}
	c.url = u
	if u.User != nil {
		password, _ := u.User.Password()
		c.basic(u.User.Username() + ":" + password)
	}
	return nil
}

func (c *curl) basic(user string) {
	c.implied["authorization"] = "Basic " + base64.StdEncoding.EncodeToString([]byte(user))
}

func (c *curl) header(line string) error {
	switch name, value, found := strings.Cut(line, ":"); {
	case strings.HasPrefix(line, "@"):
		return errors.New("takes a header here, and no file of them")
	case found:
		value = strings.TrimSpace(value)
		c.given = append(c.given, headerLine{strings.ToLower(strings.TrimSpace(name)), value, value == ""})
	case strings.HasSuffix(line, ";"):
		c.given = append(c.given, headerLine{strings.ToLower(strings.TrimSuffix(line, ";")), "", false})
	default:
		return errors.New(`lacks the ":" behind its name`)
	}
	return nil
}

// body notes data, which from a file is not known.
func (c *curl) body(data string, file bool) error {
	c.hasData = true
	c.dataKnown = c.dataKnown && !file
	c.data = append(c.data, data)
	return nil
}

func (c *curl) urlencoded(text string) error {
	if name, value, found := strings.Cut(text, "="); found {
		escaped := strings.ReplaceAll(url.QueryEscape(value), "+", "%20")
		if name != "" {
			escaped = name + "=" + escaped
		}
		return c.body(escaped, false)
	}
	return c.body(strings.ReplaceAll(url.QueryEscape(text), "+", "%20"), strings.Contains(text, "@"))
}

// request is what curl would send.
func (c *curl) request() (*simulate.Request, error) {
	u := *c.url
	if !c.asIs {
		u = *u.ResolveReference(&url.URL{Path: u.Path, RawPath: u.RawPath, RawQuery: u.RawQuery})
	}
	if c.get && c.hasData {
		if !c.dataKnown {
			return nil, errors.New("curl option -G: data from a file is not read: put it into the URL")
		}
		u.RawQuery = strings.TrimPrefix(u.RawQuery+"&"+strings.Join(c.data, "&"), "&")
	}
	r := &simulate.Request{
		Method: c.verb(), Host: u.Host, Path: u.RequestURI(), Headers: map[string][]string{},
		Properties: map[string]string{"request.scheme": u.Scheme},
	}
	if c.hasData && !c.get {
		if c.implied["content-type"] == "" {
			c.implied["content-type"] = "application/x-www-form-urlencoded"
		}
		if c.dataKnown {
			c.implied["content-length"] = strconv.Itoa(len(strings.Join(c.data, "&")))
		}
	}
	for _, h := range c.given {
		delete(c.implied, h.name)
	}
	for name, value := range c.implied {
		r.Headers[name] = []string{value}
	}
	for _, h := range c.given {
		switch {
		case h.removed:
		case h.name == "host":
			r.Host = h.value
		default:
			r.Headers[h.name] = append(r.Headers[h.name], h.value)
		}
	}
	return r, nil
}

func (c *curl) verb() string {
	switch {
	case c.method != "":
		return c.method
	case c.head:
		return "HEAD"
	case c.upload:
		return "PUT"
	case c.hasData && !c.get:
		return "POST"
	}
	return "GET"
}
