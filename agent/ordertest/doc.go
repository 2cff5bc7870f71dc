// Package ordertest makes orders for tests.
//
//	ordertest.go  an order of one task, with changes
package ordertest
