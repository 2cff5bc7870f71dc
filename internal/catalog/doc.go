// Package catalog decides which instances of a service answer a question, in which order, and says
// why. It also reads the names of DNS questions. The package is pure: distances and turns are
// arguments.
//
//   - catalog.go: Instance and its checks
//   - order.go: Order: instances by region, the nearest first; Chosen: why
//   - name.go: names below the DNS domain of services
package catalog
