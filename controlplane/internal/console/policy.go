package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-ratelimit/sluice/controlplane/internal/api"
	"github.com/sluice-ratelimit/sluice/controlplane/internal/simulate"
)

// policyView is the playground: a policy, requests, and what is known of them.
type policyView struct {
	Text    Text
	Lines   string // requests, as simulate reads them
	Request requestForm
	Reply   *Reply // nil until somebody asks
	Asked   bool   // about requests
	Trouble string // why there is no reply
}

// requestForm describes one more request.
type requestForm struct{ Method, Host, Path, Headers, ClientIP, After, Times string }

const firstPolicy = `version: 1
domain: example
rules:
  - name: per-user
    key: [{header: x-user-id}]
    limits: [10/minute]
`

func (c *console) edit(w http.ResponseWriter, r *http.Request, v *visit) error {
	c.asker.prepare()
	b := policyView{
		Text:    Text{"policy.yaml", firstPolicy},
		Request: requestForm{Method: http.MethodGet, Path: "/", After: "1s", Times: "1"},
	}
	from := api.Current
	if n, ok := number(r.URL.Query().Get("from")); ok {
		from = strconv.FormatUint(n, 10)
	}
	var now api.Revision
	switch err := c.get(r, "/v1/policies/"+from, &now); {
	case err == nil:
		b.Text = Text{now.File, now.YAML}
	case from == api.Current && isCode(err, http.StatusInternalServerError):
		b.Trouble = err.Error() // it may be damaged: a new one is the cure
	case !isCode(err, http.StatusNotFound) || from != api.Current:
		return err
	}
	return c.render(w, http.StatusOK, "policy", view{"Policy", "policy", v, &b})
}

func isCode(err error, code int) bool {
	var f *failure
	return errors.As(err, &f) && f.code == code
}

// typed is what somebody wrote into a text area: browsers send lines that end in CR LF.
func typed(r *http.Request, name string) string {
	return strings.ReplaceAll(r.PostForm.Get(name), "\r\n", "\n")
}

// edited answers the buttons of the playground.
func (c *console) edited(w http.ResponseWriter, r *http.Request, v *visit) error {
	form := r.PostForm
	b := policyView{
		Text: Text{form.Get("file"), typed(r, "policy")}, Lines: typed(r, "lines"),
		Request: requestForm{
			form.Get("method"), form.Get("host"), form.Get("path"), typed(r, "headers"), form.Get("client_ip"),
			form.Get("after"), form.Get("times"),
		},
	}
	q := Question{After: &b.Text}
	switch form.Get("do") {
	case "review":
		return c.review(w, r, v, b.Text)
	case "add":
		lines, err := b.Request.appendTo(b.Lines)
		if err != nil {
			b.Trouble = "the request: " + err.Error()
			return c.render(w, http.StatusUnprocessableEntity, "policy", view{"Policy", "policy", v, &b})
		}
		b.Lines = lines
		q.Lines = lines
	case "ask":
		q.Lines = b.Lines
	}
	code := http.StatusOK
	reply, err := c.asker.ask(r.Context(), asks(r, v), q)
	var f *failure
	switch {
	case errors.As(err, &f):
		b.Trouble, code = f.text, f.code
		if f.retryAfter != "" {
			w.Header().Set("Retry-After", f.retryAfter)
		}
	case err != nil:
		return err
	default:
		b.Reply, b.Asked = reply, q.Lines != ""
	}
	return c.render(w, code, "policy", view{"Policy", "policy", v, &b})
}

// review shows what a policy would change, with the button that applies it.
func (c *console) review(w http.ResponseWriter, r *http.Request, v *visit, after Text) error {
	now, err := c.current(r)
	if err != nil {
		return err
	}
	return c.render(w, http.StatusOK, "review", view{"Apply this policy", "policy", v, &reviewView{
		Action: "Apply", Target: "/console/policy/apply", Base: now.Number, After: after, Wasm: now.Wasm,
		Difference: c.difference(r, v, now.Number, &after),
	}})
}

// check answers the script that checks a policy as somebody types.
func (c *console) check(w http.ResponseWriter, r *http.Request, v *visit) error {
	reply, err := c.asker.ask(r.Context(), asks(r, v), Question{After: &Text{r.PostForm.Get("file"), typed(r, "policy")}})
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"problems": reply.Problems, "warnings": reply.Warnings})
	return nil
}

// asks names who asks: one question of each session at a time.
func asks(r *http.Request, v *visit) string {
	if v.session != "" {
		return v.session
	}
	return v.caller.Name + " " + r.RemoteAddr[:max(0, strings.LastIndexByte(r.RemoteAddr, ':'))]
}

// appendTo adds the request to the lines, after the last one's time.
func (f *requestForm) appendTo(lines string) (string, error) {
	after, err := time.ParseDuration(f.After)
	if err != nil || after < 0 {
		return "", fmt.Errorf("%q is not a time such as 500ms, 1s or 2m", f.After)
	}
	times, err := strconv.Atoi(f.Times)
	if err != nil || times < 1 || times > maxLines {
		return "", fmt.Errorf("%q is not a number from 1 to %d", f.Times, maxLines)
	}
	request := simulate.Request{Method: f.Method, Host: f.Host, Path: f.Path, ClientIP: f.ClientIP, Headers: map[string][]string{}}
	for line := range strings.Lines(f.Headers) {
		name, value, found := strings.Cut(line, ":")
		name = strings.ToLower(strings.TrimSpace(name))
		switch {
		case strings.TrimSpace(line) == "":
			continue
		case !found:
			return "", fmt.Errorf("the header %q lacks a colon: write name: value", strings.TrimSpace(line))
		}
		request.Headers[name] = append(request.Headers[name], strings.TrimSpace(value))
	}
	if err := request.Check(); err != nil {
		return "", err
	}
	at, begun := lastTime(lines)
	text := strings.TrimRight(lines, "\n")
	for range times {
		if begun {
			at += after.Milliseconds()
		}
		begun = true
		line, err := json.Marshal(struct {
			AtMs int64 `json:"at_ms"`
			simulate.Request
		}{at, request})
		if err != nil {
			return "", err
		}
		if text != "" {
			text += "\n"
		}
		text += string(line)
	}
	return text + "\n", nil
}

// lastTime is the time of the last line, false if there is none that is in
// milliseconds.
func lastTime(lines string) (ms int64, ok bool) {
	for line := range strings.Lines(lines) {
		var l struct {
			AtMs *int64 `json:"at_ms"`
		}
		if json.Unmarshal([]byte(line), &l) == nil && l.AtMs != nil {
			ms, ok = *l.AtMs, true
		}
	}
	return ms, ok
}
