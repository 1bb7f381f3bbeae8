package ratelimitenv

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

// environment reads settings. It notes which it has read, and what is wrong with them.
type environment struct {
	isRead map[string]bool
	errs   []error
}

// text returns a setting. An empty one is as if it were not set.
func (e *environment) text(name, otherwise string) string {
	e.isRead[name] = true
	return cmp.Or(os.Getenv(name), otherwise)
}

// fail notes that a setting's value is wrong, and what it would have to be.
func (e *environment) fail(name, right string) {
	value := os.Getenv(name)
	if strings.Contains(value, "@") || name == xdsHeaders {
		value = "…" // it may have a password
	}
	e.errs = append(e.errs, fmt.Errorf("%s=%q is wrong: it must be %s", name, value, right))
}

// isOn returns a setting that is true or false.
func (e *environment) isOn(name string, otherwise bool) bool {
	is, err := strconv.ParseBool(e.text(name, strconv.FormatBool(otherwise)))
	if err != nil {
		e.fail(name, "true or false")
	}
	return is
}

// word returns a setting that is one of several words, in upper or lower case.
func (e *environment) word(name, otherwise string, others ...string) string {
	text := e.text(name, otherwise)
	words := append([]string{otherwise}, others...)
	i := slices.IndexFunc(words, func(word string) bool { return strings.EqualFold(word, text) })
	if i < 0 {
		e.fail(name, "one of "+strings.Join(words, ", "))
		return otherwise
	}
	return words[i]
}

// address returns the address of two settings.
func (e *environment) address(host, port, number string) string {
	text := e.text(port, number)
	if n, err := strconv.ParseUint(text, 10, 16); err != nil || n == 0 {
		e.fail(port, "the number of a port, such as "+number)
	}
	return net.JoinHostPort(e.text(host, "0.0.0.0"), text)
}

// pairs returns a setting that is a list of names with values.
func (e *environment) pairs(name, separator string) map[string]string {
	pairs := map[string]string{}
	for pair := range strings.SplitSeq(e.text(name, ""), ",") {
		key, value, ok := strings.Cut(pair, separator)
		if !ok && pair != "" {
			e.fail(name, "NAME"+separator+"VALUE, more than one with commas between")
		}
		if ok {
			pairs[key] = value
		}
	}
	return pairs
}

// refuse notes a setting with which other limits would hold, and what to do instead.
func (e *environment) refuse(name, instead string) {
	e.errs = append(e.errs, fmt.Errorf("%s=%s is not supported: %s", name, os.Getenv(name), instead))
}

// unused are the settings that are set and not read. One that is false asks for nothing.
func (e *environment) unused() (names []string) {
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		isOfFamily := func(family string) bool { return strings.HasPrefix(name, family) }
		asks := value != "" && value != "0" && value != "false"
		if asks && !e.isRead[name] && slices.ContainsFunc(strings.Fields(families), isOfFamily) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// noLogin is the login of a setting that is empty.
var noLogin = url.UserPassword("", "")

// login returns the user and password of a setting that is PASSWORD or USER:PASSWORD.
func (e *environment) login(name string) *url.Userinfo {
	text := e.text(name, "")
	user, password, hasUser := strings.Cut(text, ":")
	if !hasUser {
		user, password = "", text
	}
	return url.UserPassword(user, password)
}
