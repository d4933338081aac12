/* Reads requests from their wire form. Pure C: knows no Python. */
#ifndef PD_SCAN_H
#define PD_SCAN_H

int pd_scan_placeholder(void);

#endif
