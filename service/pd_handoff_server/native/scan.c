#include "scan.h"

int pd_scan_placeholder(void) { return 1; }
