// Package fleet is a model of many proxies under one limit: the filter's own engine
// and its talk with the quota service, in virtual time, with demand, delays and
// losses made from a seed. It shows how much of a limit a fleet uses, how often it
// asks and how long requests wait.
package fleet
