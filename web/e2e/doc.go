// Package e2e tests the web page in a real browser, Debian's chromium. The tests have the build tag
// integration. Without chromium they are skipped, and print that.
//
//		go test -tags=hashicorpmetrics,integration ./web/e2e
//		go test -tags=hashicorpmetrics,integration ./web/e2e -shots    # also write the pictures of docs/img
//
//	  - page_test.go: the browser, and page: a tab that no test leaves with an error, a foreign request or
//	    a fault of accessibility
//	  - view_test.go: the looks of every view: add a line to `looks`
//	  - dev_test.go: the life of a job in a real federation
//	  - the other files: what the views do
package e2e
