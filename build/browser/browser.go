// Package browser has the tests that drive the console in a real Chromium, against a real
// serve, a real Envoy and real traffic, and look at the page of a replay. It is a module of its
// own: what drives a browser reaches no user.
//
// Its invariant: a page with an error in the browser's console, a request to another host,
// or a serious fault that axe-core finds, fails the test.
package browser
